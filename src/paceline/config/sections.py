"""Every option, once: one frozen dataclass per component, each field with its meaning, unit and rule.

A field's docstring is the option's help text. Names are unique over all sections, so that flags and files are flat.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.config.layout import ClusterConfig, ParallelConfig
from paceline.config.objective import AdvantageConfig, LossConfig, OptimConfig
from paceline.config.rules import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FROM_0_TO_1, Bound, check_bounds, require
from paceline.config.sampling import EngineConfig, EnvironmentConfig, SamplingConfig
from paceline.config.vision import VisionConfig

MODEL = "model:"
JUDGE = "judge:"
SANDBOXES = ("auto", "namespaces", "landlock", "none")
NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<address>.*)", re.DOTALL)
"""Pattern of a named set of held-out tasks; a path with an equals sign is written with a slash before it."""
RESERVED_SWITCHES = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        *("enable_thinking", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict"),
        *("return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation"),
    }
)
"""Arguments of a template's rendering that the user cannot set, or that are options themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Model, its precision and its device."""

    model: str
    """Directory (of a run: the model that it trained), Hub name, or `embedded`, `embedded-programs`, `embedded-agent`
    or `embedded-vision` for the small models that ship with the package."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the computation; weights and optimiser state stay float32. auto: bfloat16 on CUDA, and on a CPU with
    AMX or AVX512-BF16 for models from 10 million parameters, else float32."""
    final_dtype: Literal["base", "float32", "bfloat16"] = "base"
    """Precision of the whole model in `final/`; base: that of the files of `model`. Training is in float32 either way,
    and bfloat16 rounds away what is small beside a weight; float32 keeps it in twice the bytes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on. auto: CUDA if there is one."""
    deterministic: bool = False
    """Refuse whatever could give other bits in a second run with the same options. A CPU needs nothing for it; on CUDA
    torch uses its deterministic operations, which are slower, and raises where it has none."""
    threads: Annotated[int, AT_LEAST_0] = 0
    """CPU threads to compute with; 0: one for a model below a million parameters, else one per core."""
    gradient_checkpointing: Literal["auto", "true", "false"] = "auto"
    """Recompute activations in the backward pass: less memory for up to a third more time. It applies to every layer,
    to none, or (auto) to as few as let the others' activations fit into half of the free memory."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless asked for by name."""

    def __post_init__(self) -> None:
        check_bounds(self)


OTHER_ADAPTER = "peft_type"
"""Key in `lora_settings` for the kind of an adapter other than LoRA."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Training a low-rank adapter instead of all weights."""

    lora_rank: Annotated[int, AT_LEAST_0] = 0
    """Rank of the adapter's matrices; 0 trains all weights."""
    lora_alpha: Annotated[float | None, ABOVE_0] = None
    """The adapter is scaled by this over the rank; None: twice the rank."""
    lora_targets: Annotated[tuple[str, ...], Bound(len, "name at least one module")] = ("all-linear",)
    """Modules that get an adapter, by the end of their name; `all-linear`: every linear layer but the output's."""
    lora_parameters: tuple[str, ...] = ()
    """Matrices of experts that get an adapter, by the end of their name, such as `experts.down_proj`; `all-experts`:
    those of all experts. `lora_targets` leaves them frozen, as they are no linear layers."""
    lora_settings: tuple[str, ...] = ()
    """Further settings of peft's LoraConfig, NAME=VALUE each, such as `use_rslora=true`; a value is JSON, or text where
    it is none. `peft_type=KIND` stands for an adapter of another kind, which a Python program passed in."""
    merge_lora: bool = False
    """Write `final/` as a whole model with the adapter merged into it, instead of the adapter alone."""

    def __post_init__(self) -> None:
        check_bounds(self)
        pairs = [entry.partition("=") for entry in self.lora_settings]
        names = [name for name, equals, _ in pairs if equals and name.isidentifier()]
        right = len({*names} - {"r", "lora_alpha", "target_parameters"}) == len(pairs)
        rule = "be NAME=VALUE, each name once, without r, lora_alpha and target_parameters, which have options"
        require(right, "lora_settings", self.lora_settings, rule)

    @property
    def settings(self) -> dict[str, object]:
        """Settings beside rank, alpha and targets, by peft's names."""
        return {name: json_or_text(value) for name, _, value in (entry.partition("=") for entry in self.lora_settings)}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Datasets, and the conversion of rows to prompts."""

    dataset: Annotated[str | tuple[str, ...], Bound(lambda value: value != (), "name at least one dataset")]
    """JSONL or parquet file, directory, Hub name, `arithmetic`, `programs`, `guess`, `seeds`, `shapes`,
    `reasoning_gym:NAME`, or `verifiers:ID`; several are joined. `#N` behind one takes N of its rows, drawn by `seed`.
    It may be left out with an environment that makes its own tasks: `gymnasium:ID`, `textarena:ID`, `openenv:URL`,
    `reasoning_gym:NAME`, `verifiers:ID`."""
    dataset_split: str = "train"
    """Split of `dataset` to train on."""
    eval_dataset: Annotated[tuple[str, ...] | None, Bound(len, "name at least one dataset")] = None
    """Held-out tasks, addressed as `dataset` is. Each of several sets has its own accuracy, and `NAME=ADDRESS` names
    one. None: the `eval_split` of `dataset`, if it has one."""
    eval_split: str = "test"
    """Split of the held-out tasks."""
    eval_share: Annotated[float | None, Bound(lambda value: 0 < value < 1, "lie between 0 and 1")] = None
    """Hold out this share of the prompts of `dataset`, drawn by `seed`, in the place of `eval_dataset` and of a split:
    0.1 trains on nine in ten. Rows of one prompt stay together."""
    allow_overlap: bool = False
    """Train although prompts of held-out tasks are trained on too; otherwise such a run is refused before its first
    step, as its accuracy would also measure what was memorised."""
    prompt_column: str | None = None
    """Column with the prompt (text or messages); None: the known formats are recognised."""
    answer_column: str | None = None
    """Column with the gold answer; None: the known formats are recognised."""
    system_prompt: str | None = None
    """System message put before every prompt, or `file:PATH` of a text file that holds it; None: the reward functions'
    own default, `""`: none at all."""
    enable_thinking: bool | None = None
    """Passed to chat templates that know the switch; None: left to the template."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Further switches of the chat template, NAME=VALUE each, such as `reasoning_effort=low`; a value is JSON, or text
    where it is none."""
    max_prompt_length: Annotated[int, AT_LEAST_1] = 512
    """Tokens of a prompt, at most."""
    long_prompts: Literal["error", "drop", "truncate_left"] = "error"
    """Treatment of a prompt above `max_prompt_length`; dropped and truncated rows are counted."""
    shuffle: bool = True
    """A new order each epoch, fixed by `seed`."""
    dataset_size: Annotated[int | None, AT_LEAST_1] = None
    """Rows to use, from the first; for generators: how many to make (None: 10,000). Several datasets share them by
    their numbers of rows, and each gives at least one."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Treatment of a row that cannot be used; skipped rows are counted, and the first is named."""

    def __post_init__(self) -> None:
        check_bounds(self)
        pairs = [entry.partition("=") for entry in self.chat_template_kwargs]
        names = [name for name, equals, _ in pairs if equals and name.isidentifier()]
        right = len({*names}) == len(pairs) and not RESERVED_SWITCHES.intersection(names)
        rule = f"be NAME=VALUE, each name once and none of {', '.join(sorted(RESERVED_SWITCHES))}"
        require(right, "chat_template_kwargs", self.chat_template_kwargs, rule)
        if self.eval_dataset is not None:
            share, rule = self.eval_share, "be left out with --eval-dataset"
            require(share is None, "eval_share", share, rule, "held-out tasks are there")
            whole = all(address.strip() for _, address in self.held_out)
            require(whole, "eval_dataset", self.eval_dataset, "hold no empty address", "write NAME=ADDRESS or ADDRESS")
            names = [name or address for name, address in self.held_out]
            right = len(set(names)) == len(names)
            require(right, "eval_dataset", self.eval_dataset, "name each set once", "NAME=ADDRESS gives one a name")

    @property
    def switches(self) -> dict[str, object]:
        """Arguments of the chat template beside messages and tools."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        pairs = (entry.partition("=") for entry in self.chat_template_kwargs)
        return {**thinking, **{name: json_or_text(value) for name, _, value in pairs}}

    @property
    def system_prompt_file(self) -> str | None:
        """Path of the file that holds the system message, where `system_prompt` names one."""
        _, is_file, path = (self.system_prompt or "").partition("file:")
        return path if is_file and self.system_prompt == f"file:{path}" else None

    @property
    def datasets(self) -> tuple[str, ...]:
        """Addresses of `dataset`, one or several."""
        return (self.dataset,) if isinstance(self.dataset, str) else self.dataset

    @property
    def held_out(self) -> tuple[tuple[str | None, str], ...]:
        """Name, where one is given, and address of each set of held-out tasks; without any, `dataset` itself."""
        if self.eval_dataset is None:
            return tuple((None, address) for address in self.datasets)
        matches = [(entry, NAMED.fullmatch(entry)) for entry in self.eval_dataset]
        return tuple((None, entry) if match is None else (match["name"], match["address"]) for entry, match in matches)


def json_or_text(value: str) -> object:
    """Read a value as JSON, or as the text that it is where it is none."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _is_sandbox(value: str) -> bool:
    return value in SANDBOXES or value.startswith(("http://", "https://"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig:
    """Rewards of a completion."""

    reward_funcs: tuple[str, ...] | None = None
    """Names, `module:function`, `file.py:function`, `model:NAME` of a sequence-classification model (a directory or Hub
    name), `judge:http://HOST:PORT/v1(model=NAME)` of a language model that grades, or `judge:MODEL` of one that the run
    serves itself, summed with `reward_weights`; None: accuracy, or with an `environment` its own reward alone."""
    reward_weights: tuple[float, ...] | None = None
    """One weight per reward function; None: all 1."""
    max_reward_failure_rate: Annotated[float, FROM_0_TO_1] = 0.05
    """Share of a step's completions on which a reward function may fail; above it the run stops."""
    reward_timeout: Annotated[float, ABOVE_0] = 600.0
    """Seconds that one call of a reward function may take; then it has failed on all of the call's completions.
    Built-in functions have bounds of their own."""
    sandbox: Annotated[
        str, Bound(_is_sandbox, f"be one of {', '.join(SANDBOXES)}, or start with http:// or https://")
    ] = "auto"
    """Isolation of the programs that `code` runs: namespaces, landlock, or none; auto: namespaces, else landlock, else
    refuse. Or http://HOST:PORT of a judge service that runs them instead of this machine."""

    def __post_init__(self) -> None:
        check_bounds(self)
        names = self.names
        repeated = {name for name in names if names.count(name) > 1}
        require(not repeated, "reward_funcs", names, "name each function once", "raise its weight instead")
        if self.reward_weights is not None:
            rule = f"give one weight for each of the {len(names)} rewards ({', '.join(names)})"
            require(len(self.reward_weights) == len(names), "reward_weights", self.reward_weights, rule)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the reward functions that are no models."""
        return tuple(name for name in self._reward_funcs if not name.startswith(MODEL))

    @property
    def reward_models(self) -> tuple[str, ...]:
        """Directories or Hub names of the reward models."""
        return tuple(name.removeprefix(MODEL) for name in self._reward_funcs if name.startswith(MODEL))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all rewards in the order of the weights; a model goes by its own."""
        return tuple(name.removeprefix(MODEL) for name in self._reward_funcs)

    @property
    def _reward_funcs(self) -> tuple[str, ...]:
        return ("accuracy",) if self.reward_funcs is None else self.reward_funcs

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each of `names`."""
        return dict(zip(self.names, self.reward_weights or (1.0,) * len(self.names), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """Accuracy on held-out tasks."""

    eval_steps: Annotated[int, AT_LEAST_0] = 0
    """Steps between evaluations; 0: only before the first step and after the last."""
    eval_size: Annotated[int | None, AT_LEAST_1] = 500
    """Held-out tasks to use, from the first; None: all of them."""
    eval_temperature: Annotated[float, AT_LEAST_0] = 0.0
    """0 takes the most probable token: the same number each time."""
    eval_generations: Annotated[int, AT_LEAST_1] = 1
    """Completions per held-out task; above 1 also gives pass@k."""
    eval_reward_func: str = "accuracy"
    """Reward function that decides what is right (a score of 0.5 or more, or a built-in one's own verdict), by default
    with the parameters that `accuracy` has among `reward_funcs`; the name of an environment: its own reward, which is
    the default where there are no `reward_funcs`."""

    def __post_init__(self) -> None:
        check_bounds(self)
        right, why = self.eval_generations == 1 or self.eval_temperature > 0, "greedy completions are all the same"
        require(right, "eval_generations", self.eval_generations, "be 1 at --eval-temperature 0", why)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """Length of the run, size of a step, checkpoints and records."""

    output_dir: str | None = None
    """Run directory; None: `runs/` and a name made of model, dataset and time."""
    prompts_per_step: Annotated[int, AT_LEAST_1] = 32
    """Prompts (P) whose rollouts make one step: P times `num_generations` completions."""
    num_epochs: Annotated[float, ABOVE_0] = 1.0
    """Passes over the dataset, when `max_steps` is not given; takes the place of a file's `max_steps`."""
    max_steps: Annotated[int | None, AT_LEAST_1] = None
    """Steps of the run; None: as `num_epochs` says, whose place in a file it takes."""
    save_steps: Annotated[int, AT_LEAST_0] = 100
    """Steps between checkpoints, which are also written at an interrupt; 0: only at an interrupt."""
    save_total_limit: Annotated[int, AT_LEAST_1] = 2
    """Checkpoints kept, newest first."""
    background_save: bool = True
    """Write a checkpoint from a copy in main memory while the run continues, if the copy takes at most half of the free
    memory; false: the run waits until it is on disk."""
    stop_grace: Annotated[float, Bound(lambda value: 0 <= value < math.inf, "be at least 0 and finite")] = 25.0
    """Seconds to finish the current step and its checkpoint after a signal to stop; 0: no limit. Whatever sent the
    signal kills the run later, Kubernetes and Slurm after 30 seconds by default."""
    step_timeout: Annotated[float, ABOVE_0] = 3600.0
    """Seconds without progress (a pass of a micro-batch, tokens of completions, a reward function's call). After them
    the run records the stack of every thread and ends."""
    seed: Annotated[int, Bound(lambda value: 0 <= value < 2**63, "lie in [0, 2^63)")] = 0
    """Fixes data order and every sampled token."""
    report_to: tuple[str, ...] = ()
    """Trackers that get the metrics besides the run's own files: tensorboard, wandb, trackio, mlflow."""
    project: str = "paceline"
    """Name under which trackers group this run with others."""
    profile: bool = False
    """Write `timeline.json`: each process's activity since the run was last started, for Perfetto to open."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The whole configuration of a run. Training and the commands see it; each package below gets its own section."""

    model: ModelConfig
    lora: LoraConfig
    data: DataConfig
    vision: VisionConfig
    rewards: RewardConfig
    sampling: SamplingConfig
    environment: EnvironmentConfig
    engine: EngineConfig
    advantage: AdvantageConfig
    loss: LossConfig
    optim: OptimConfig
    evaluation: EvalConfig
    loop: LoopConfig
    cluster: ClusterConfig
    parallel: ParallelConfig
