"""The rewards of the step."""

from paceline.data.answers import last_answer_tag


def accuracy(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 for the right answer in answer tags."""
    return [float(last_answer_tag(text) == gold) for text, gold in zip(completions, answer, strict=True)]


def mean_token(completion_ids: list, **columns: object) -> list[float]:
    """Mean token id, in thousands: any two different completions earn differently."""
    return [sum(ids) / len(ids) / 1000 for ids in completion_ids]


REWARDS = {"accuracy": accuracy, "mean_token": mean_token}
