"""How long a step takes at best, phase by phase: max(operations / rate of products, bytes / rate of reading).

Completions count at their longest, and every group as trained on. What is left out makes a step longer: what a layer
computes besides products, rewards, messages between processes, starting kernels. What makes it shorter: rows that end
early, groups without signal. `docs/performance.md` holds measured steps against such a floor.
"""

import math
from dataclasses import dataclass

from paceline.config.layout import Sizes
from paceline.config.sections import Config
from paceline.training.plan.hardware import Rates
from paceline.training.plan.memory import FLOAT32_BYTES, MemoryPlan, samplers
from paceline.training.plan.shape import ModelShape

FORWARD = 2
"""Operations per weight and token: a product and a sum."""
BACKWARD = 2
"""For the gradients of the inputs, and as much again for those of the weights, which an adapter's base has none of."""
ADAM_NUMBERS = 7
"""Read per trained weight: weight, gradient, two moments; written: weight and moments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of a step in the process that takes longest."""

    generate: float
    update: float
    is_ahead: bool
    """True if the next steps are sampled while one is trained."""

    @property
    def step(self) -> float:
        """One after the other, or the longer of both."""
        return max(self.generate, self.update) if self.is_ahead else self.generate + self.update


def rows_at_once(config: Config, sizes: Sizes) -> int:
    """Return how many completions a process decodes at a time."""
    groups = math.ceil(config.loop.prompts_per_step / samplers(config, sizes))
    return min(config.engine.concurrent_sequences, groups * config.sampling.num_generations)


def step_time(
    config: Config,
    shape: ModelShape,
    memory: MemoryPlan,
    rates: Rates,
    number_bytes: int,
    sizes: Sizes,
    *,
    layer_bytes: int | None = None,
) -> StepTime:
    """The floor of a step on these rates; `memory` says what is computed again.

    `layer_bytes`: of a layer's weight while the engine samples; None: `number_bytes`, as of any other number.
    """
    prompt, length = config.data.max_prompt_length, config.sampling.max_completion_length
    generations, optim = config.sampling.num_generations, config.optim
    layers, head = shape.num_layers * shape.layer, shape.matrix
    # sampling: prompts once per group, whose logits give the first token; then a token of every row at a time, which
    # reads all weights and the cache
    groups = math.ceil(config.loop.prompts_per_step / samplers(config, sizes))
    rows = rows_at_once(config, sizes)
    waves = math.ceil(groups * generations / rows)
    first = FORWARD * groups * (layers * prompt + head) / rates.products
    read_cache = rows * length / 2 + rows / generations * prompt  # on average, a group's prompt once
    operations = rows * FORWARD * shape.multiplied / (rates.decoding or rates.products)
    weights = layers * (layer_bytes or number_bytes) + head * number_bytes
    reading = (weights + number_bytes * shape.cached * read_cache) / rates.reading
    generate = first + waves * (length - 1) * max(operations, reading)
    # update: forward and backward over every token, logits of completions alone, and what AdamW reads and writes
    share = config.loop.prompts_per_step / sizes.shares / sizes.context
    completions = share * generations * length
    tokens = share * prompt + completions
    attended = 2 * shape.num_layers * shape.num_heads * shape.head_dim * (prompt + length / 2)
    backward = BACKWARD if config.lora.lora_rank else 2 * BACKWARD
    back_and_forth = layers * (FORWARD + backward) + attended * (FORWARD + 2 * BACKWARD)
    of_head = head * (FORWARD + backward + FORWARD)  # logits are computed again in the backward pass
    again = FORWARD * memory.cut.layers / shape.num_layers
    before = FORWARD * ((config.loss.beta > 0) + (optim.num_minibatches > 1))  # passes without a gradient
    with_gradient = optim.num_iterations * (tokens * back_and_forth + completions * of_head)
    without = tokens * (layers + attended) * (optim.num_iterations * again + before) + completions * head * before
    seconds = with_gradient / (rates.training or rates.products) + without / rates.products
    updates = optim.num_iterations * optim.num_minibatches
    moved = updates * ADAM_NUMBERS * memory.optimizer / optim.moment_bytes * FLOAT32_BYTES
    update = seconds / (sizes.tensor * sizes.pipeline) + moved / rates.reading
    return StepTime(generate=generate, update=update, is_ahead=config.cluster.max_staleness > 0)
