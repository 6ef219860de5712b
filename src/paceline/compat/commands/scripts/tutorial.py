"""Options behind the from-scratch tutorial's call `train_with_grpo(...)`."""

from collections.abc import Mapping

from paceline.compat.commands.scripts.reading import Argument, Script, Written, source_of
from paceline.compat.commands.translation import Note, Translation
from paceline.config.reading import suggest
from paceline.errors import ConfigError

DEFAULTS: Mapping[str, int | float] = {
    "num_iterations": 1,
    "num_steps": 500,
    "batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 128,
    "beta": 0.1,
    "learning_rate": 5e-6,
    "mu": 3,
    "epsilon": 0.2,
}
"""Defaults of its signature."""
POSITIONS = ("model", "tokenizer", "train_data", *DEFAULTS, "reward_function")
OBJECTS = ("model", "tokenizer", "train_data", "reward_function", "device_ids")
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
DATASET = "openai/gsm8k:main"
IDLE = ("torch_dtype", "dtype", "device_map", "padding_side", "use_cache", "attn_implementation")
"""Arguments of from_pretrained without effect here, or covered by the note on the model."""
GRAD_NORM = 0.1
HELD_OUT = 30
NOTES = (
    Note("changed", "batch_size num_generations", "prompts, and completions of each, as there"),
    Note("changed", "mu", "updates of one batch: --num-iterations"),
    Note(
        "mended",
        "reward_function",
        "is taken for combined_reward, --reward-funcs gsm8k here: a tag counts once and in order, and no answer is not "
        "equal to none; name another as file.py:function",
    ),
    Note(
        "mended",
        "train_data",
        f"{DATASET}, each row once an epoch, where rows were drawn anew each step; its held-out set was {HELD_OUT} of "
        "the training rows, sampled; here it is the split test, greedy, with an interval",
    ),
    Note(
        "mended",
        "tokenizer",
        "prompts go through the chat template, so that a completion ends; there they were bare lines, and text ran on "
        "past its answer",
    ),
    Note("mended", "model", "weights are float32, where AdamW's steps on bfloat16 ones were mostly rounded away"),
    Note("changed", "optimiser", "a gradient's norm is held at 0.1 and the rate is constant, as there"),
)


def from_tutorial(script: Script, found: Translation) -> None:
    """Add options of the call and of what the tutorial does around it; ConfigError for a call that is not literal."""
    call, *others = script.calls["train_with_grpo"]
    if others or len(call.positional) > len(POSITIONS):
        raise ConfigError(
            "train_with_grpo must be called once, with its own arguments, to be translated; split the script"
        )
    about_model = Translation()
    model = _model(script, about_model)
    arguments = {**dict(zip(POSITIONS, call.positional, strict=False)), **call.named}
    numbers = {**DEFAULTS, **{name: _number(name, one) for name, one in arguments.items() if name not in OBJECTS}}
    steps, rounds = int(numbers["num_steps"]), int(numbers["num_iterations"])
    found.decide(model=model, dataset=DATASET, reward_funcs=("gsm8k",), preset="grpo")
    if numbers["beta"] != 0:
        found.decide(kl="k3")
    found.decide(
        beta=float(numbers["beta"]),
        clip_eps_low=float(numbers["epsilon"]),
        clip_eps_high=float(numbers["epsilon"]),
        max_steps=steps * rounds,
        prompts_per_step=int(numbers["batch_size"]),
        num_generations=int(numbers["num_generations"]),
        max_completion_length=int(numbers["max_completion_length"]),
        learning_rate=float(numbers["learning_rate"]),
        num_iterations=int(numbers["mu"]),
        max_grad_norm=GRAD_NORM,
        weight_decay=0.01,
        output_dir="grpo_finetuned_model",
    )
    found.notes += NOTES
    if rounds > 1:
        text = f"{rounds} rounds of {steps} steps with a new reference each: here one run of {steps * rounds}"
        found.note("missing", "num_iterations", text)
    if "device_ids" in arguments:
        text = "DataParallel was passed by, and one device did all; torchrun -m paceline train shares steps out"
        found.note("mended", "device_ids", text)
    found.add(about_model)


def _number(name: str, argument: Argument) -> int | float:
    if name not in DEFAULTS:
        near = suggest(name, DEFAULTS, otherwise="leave it out")
        raise ConfigError(f"train_with_grpo has no {name}; {near}")
    if not isinstance(argument, Written) or not isinstance(argument.value, int | float):
        raise ConfigError(f"train_with_grpo's {name} must be written out as a number, got {source_of(argument)}")
    return argument.value


def _model(script: Script, found: Translation) -> str:
    """The one model that the script loads by name, also for its tokenizer; the tutorial's own by default."""
    names = set[str]()
    for call in script.calls.get("from_pretrained", ()):
        given = {**dict(zip(("pretrained_model_name_or_path",), call.positional, strict=False)), **call.named}
        first = given.pop("pretrained_model_name_or_path", None)
        if not isinstance(first, Written) or len(call.positional) > 1:
            raise ConfigError("from_pretrained must be given a name that is written out, to be translated")
        names.add(str(first.value))
        for name in given:
            if name not in IDLE:
                text = "is not looked at: the model is loaded as its files say"
                found.note("missing", f"from_pretrained {name}", text)
    if len(names) > 1:
        raise ConfigError(f"a script must load one model to be translated, got {', '.join(sorted(names))}")
    if not names:
        text = f"{MODEL}, the tutorial's own, as the script loads none; give another as --model"
        found.note("settled", "model", text)
    return names.pop() if names else MODEL
