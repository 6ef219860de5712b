"""The algorithm, pure: advantages, token losses, averages over a step, the formula.

N completion tokens of a micro-batch are laid end to end, without padding. Log-probabilities are in nats. Every loss is
per token; the weights that average tokens are computed for the whole step in `micro_batches`. A loss is therefore
always `(weights * token_losses).sum()`, and its gradient does not depend on how a step is cut.

advantages.py     rewards of a group to advantages
streams.py        what trains a token
micro_batches.py  rows of completions packed into a micro-batch, with the weight of every token
cutting.py        a step's rows to micro-batches under a budget, and to ranks
policy_loss.py    ratio and its bounds, KL penalty, importance weights for rollouts of another policy
own_loss.py       a policy loss that a user defines, and the check that a cut does not change it
schedule.py       the learning rate of a step, and an entropy coefficient that follows a target
formula.py        the objective of a configuration as a formula
"""
