"""The learner: takes scored groups, computes logprobs and loss, steps the optimiser. Knows no engine or file.

groups -> samples -> micro-batches -> logprobs -> loss -> gradients -> new weights

samples.py           which completions are trained on
objective.py         the loss of each token
learner.py           gradients and updates
forward_backward.py  micro-batches through a model or a pipeline's stage, smaller where memory has run out
optimizers.py        AdamW in its kinds
stats.py             what the updates did
"""
