"""How transformers and TRL are made to end each completion where the workload says, on their own ordinary paths."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor


class ForcedEnds(LogitsProcessor):
    """The end token as the last token of each row, and nowhere before: `generate`'s own rule then ends the row."""

    def __init__(self, limits: Sequence[int], *, prompt_length: int, end: int, device: torch.device) -> None:
        """Limits in tokens, one per row, the end token included; `prompt_length` with its padding."""
        self.last = torch.tensor(limits, device=device) + prompt_length - 1
        self.end = end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] of the token after `input_ids` [B, T], changed in place."""
        is_last = self.last <= input_ids.shape[1]
        ends = scores[:, self.end].masked_fill(~is_last, -torch.inf)
        scores.masked_fill_(is_last[:, None], -torch.inf)
        scores[:, self.end] = torch.where(is_last, 0.0, ends)
        return scores


def made_lengths(completions: Tensor, ends: Sequence[int]) -> list[int]:
    """Tokens of each row [B, T] up to its first end token, that one included."""
    ended = torch.isin(completions, torch.tensor(sorted(ends), device=completions.device))
    return torch.where(ended.any(1), ended.int().argmax(1) + 1, completions.shape[1]).tolist()
