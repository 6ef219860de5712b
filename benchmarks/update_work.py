"""The updates that bench_update.py measures: a row for each way to train, its groups, its operations, its plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from materials import SHAPES, config_of
from step_work import Group, Shape, Training, update_operations
from workloads import LORA_RANK

from paceline.config.building import build_config
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import Device, model_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One way to train."""

    size: str
    """A name of `SHAPES`."""
    micro_batch_tokens: int = 16_384
    checkpointing: bool = False
    """Every layer is computed again."""
    offload: tuple[str, ...] = ()
    optimizer: str = "adamw"
    lora: bool = False
    groups: int = 4
    prompt: int = 512
    """Tokens of each group's prompt."""
    completions: int = 16
    """Of each group."""
    length: int = 992
    """Tokens of each completion: a group forwards 16,368, which fill a micro-batch of 16,384."""

    @property
    def name(self) -> str:
        """As in results and on the page."""
        kinds = [
            *["checkpointing"] * self.checkpointing,
            *(f"offload {one}" for one in self.offload),
            *["8-bit moments"] * (self.optimizer == "adamw_8bit"),
            *["adapter"] * self.lora,
        ]
        return ", ".join([self.size, f"{self.micro_batch_tokens:,} tokens", *kinds])

    @property
    def shape(self) -> Shape:
        """Of its model."""
        return Shape.of(config_of(SHAPES[self.size]))

    @property
    def work(self) -> list[Group]:
        """What is trained on."""
        return [Group(prompt=self.prompt, completions=(self.length,) * self.completions)] * self.groups

    @property
    def operations(self) -> float:
        """Of matrix products and attention, counted once each: what the MFU counts."""
        return update_operations(Training.of(self.shape, self.work), adapter=self.lora)

    def planned(self, device: Device) -> int:
        """Bytes that `paceline plan` counts for the update on a device, without the libraries' own."""
        given = {
            "model": self.size,
            "dataset": "none",
            "prompts_per_step": self.groups,
            "num_generations": self.completions,
            "max_prompt_length": self.prompt,
            "max_completion_length": self.length,
            "micro_batch_tokens": self.micro_batch_tokens,
            "gradient_checkpointing": "true" if self.checkpointing else "false",
            "optimizer": self.optimizer,
            "lora_rank": self.lora_rank,
            "max_steps": 1,
            **({"offload": self.offload} if self.offload else {}),
        }
        shape = model_shape({"model_type": "qwen2"} | SHAPES[self.size], parameters=self.shape.parameters)
        assert shape is not None
        plan = memory_plan(build_config(given), shape, on=device)
        return plan.update - plan.libraries

    @property
    def lora_rank(self) -> int:
        """Of its adapter, 0 without one."""
        return LORA_RANK if self.lora else 0


QUICK = {"groups": 2, "prompt": 16, "completions": 4, "length": 24}
"""A few tokens, to try the benchmark itself."""
ROWS: dict[str, Sequence[Row]] = {
    "30m": (
        Row(size="30m", micro_batch_tokens=4096, groups=1, completions=4, length=256),
        Row(size="30m", micro_batch_tokens=4096, groups=1, completions=4, length=256, checkpointing=True),
        Row(size="30m", micro_batch_tokens=4096, groups=1, completions=4, length=256, lora=True),
    ),
    "qwen-0.5b": (Row(size="qwen-0.5b"), Row(size="qwen-0.5b", micro_batch_tokens=32_768)),
    "qwen-1.5b": (
        Row(size="qwen-1.5b"),
        Row(size="qwen-1.5b", checkpointing=True),
        Row(size="qwen-1.5b", lora=True),
        Row(size="qwen-1.5b", offload=("optimizer",)),
        Row(size="qwen-1.5b", micro_batch_tokens=8192),
        Row(size="qwen-1.5b", micro_batch_tokens=4096),
        Row(size="qwen-1.5b", offload=("activations",)),
        Row(size="qwen-1.5b", optimizer="adamw_8bit"),
        Row(size="qwen-1.5b", micro_batch_tokens=32_768),
    ),
    "qwen-7b": (
        Row(size="qwen-7b", checkpointing=True, offload=("optimizer",)),
        Row(size="qwen-7b", lora=True),
        Row(size="qwen-7b", lora=True, checkpointing=True, micro_batch_tokens=4096),
        Row(size="qwen-7b", checkpointing=True, optimizer="adamw_8bit"),
    ),
}
"""By size; what says most comes first, as a run may end before the last."""
