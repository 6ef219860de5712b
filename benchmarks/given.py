"""What every contender gets: a file with the workload, its prompts and its limits, and the directory of the model.

Only the standard library is imported here: environments without Paceline read it too.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from workloads import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One prompt of a repetition."""

    task_id: str
    text: str
    ids: tuple[int, ...]
    """What every tokenizer of the model makes of `text`."""
    answer: str
    limits: tuple[int, ...] | None
    """Tokens of each completion; None: they end by themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """One workload, ready to be read."""

    workload: Workload
    model: str
    """Directory with weights and tokenizer."""
    twin: str
    """Directory of a model that is the same function, for who cannot run `model`; else `model`."""
    repetitions: tuple[tuple[Prompt, ...], ...]
    """The warm-up first."""

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str | Path) -> "Given":
        """What `write` wrote."""
        found = json.loads(Path(path).read_text())
        return cls(
            workload=Workload(**{**found["workload"], "prompt_lengths": tuple(found["workload"]["prompt_lengths"])}),
            model=found["model"],
            twin=found["twin"],
            repetitions=tuple(tuple(_prompt(one) for one in prompts) for prompts in found["repetitions"]),
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest completion."""
        prompts = [len(prompt.ids) for prompts in self.repetitions for prompt in prompts]
        return max(prompts) + self.workload.max_new_tokens

    def limits(self, repetition: int) -> list[int]:
        """Of every completion of a repetition, prompt by prompt."""
        size, most = self.workload.num_generations, self.workload.max_new_tokens
        return [limit for prompt in self.repetitions[repetition] for limit in prompt.limits or (most,) * size]


def _prompt(found: dict) -> Prompt:
    limits = found["limits"]
    return Prompt(
        **{**found, "ids": tuple(found["ids"]), "limits": None if limits is None else tuple(limits)},
    )


def digest(prompts: Sequence[str]) -> str:
    """The same for the same set of prompts."""
    return blake2b(repr(sorted(set(prompts))).encode(), digest_size=8).hexdigest()
