"""The control experiment: random."""

from hashlib import blake2b

from paceline.rewards.function import BuiltIn, RewardContext


def random_score(context: RewardContext) -> BuiltIn:
    """`random`: a number in [0, 1) that has nothing to do with quality.

    A run with this reward must not get better; where it does, what you measure is not what you reward. The number
    follows from prompt, completion and position in the batch.
    """

    def call(*, prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [_uniform(*row) for row in zip(range(len(prompts)), prompts, completions, strict=True)]

    return BuiltIn(name="random", call=call, gold=None)


def _uniform(position: int, prompt: str, completion: str) -> float:
    """The first 53 bits of a hash, as a fraction; lone surrogates in a text are hashed like any character."""
    row = f"{position}\x00{len(prompt)}\x00{prompt}{completion}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(blake2b(row, digest_size=8).digest(), "big") >> 11) / 2**53
