"""The learner: takes scored groups, computes logprobs and loss, steps the optimiser. Knows no engine or file.

groups -> samples -> micro-batches -> logprobs -> loss -> gradients -> new weights

samples.py           which completions are trained on
objective.py         the loss of each token
learner.py           gradients and updates
budget.py            how large micro-batches are, and smaller where memory has run out
forward_backward.py  micro-batches through a model, forward and backward
pipeline.py          the same where its layers are stages on several ranks
optimizers.py        AdamW in its kinds
stats.py             what the updates did
"""
