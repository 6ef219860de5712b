"""How long a sequence of a run can be, and what must be fixed for all of them by that."""

from paceline.config.sections import Config
from paceline.models.loaded import Loaded
from paceline.models.rope import fix_rope


def longest_sequence(config: Config, policy: Loaded) -> int:
    """Tokens of a prompt with its completion, at most: by the options, as far as the model reaches."""
    length = config.data.max_prompt_length + config.sampling.max_completion_length
    positions = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    return length if positions is None else min(length, positions)


def fix_lengths(config: Config, policy: Loaded) -> Loaded:
    """The model with rotary frequencies that are the same for every sequence of the run, in engine and learner."""
    fix_rope(policy.model, longest_sequence(config, policy))
    return policy
