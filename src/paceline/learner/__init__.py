"""The consumer half: takes scored groups, computes logprobs and loss, steps the optimiser. Knows no engine or file.

groups -> samples -> micro-batches -> logprobs -> loss -> gradients -> new weights

samples.py    which completions are trained on
objective.py  the loss of each token
learner.py    gradients and updates
budget.py     how large micro-batches are, and smaller where memory has run out
passes.py     micro-batches through a model, forward and back
pipeline.py   the same where its layers are stages on several ranks
optimizers.py AdamW in its kinds
stats.py      what the updates did
tokens.py     what the policy says of every token
"""

from paceline.learner.learner import Learner, PreparedBatch
from paceline.learner.objective import Logprobs, token_losses
from paceline.learner.optimizers import make_optimizer
from paceline.learner.passes import TokenValues
from paceline.learner.samples import OUT_OF_THE_STEP, minibatches, samples_of
from paceline.learner.stats import UpdateStats
from paceline.learner.tokens import token_values

__all__ = [
    "Learner",
    "PreparedBatch",
    "make_optimizer",
    "UpdateStats",
    "Logprobs",
    "token_losses",
    "samples_of",
    "minibatches",
    "OUT_OF_THE_STEP",
    "TokenValues",
    "token_values",
]
