"""Options of earlier versions, and what is written for them today.

A file or a record of an earlier version is read in today's words. On the command line an old name is refused with the
new one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Former:
    """An option that exists no longer: its value became part of another option, or what is always done."""

    now: str
    """What to write today, as the end of `there is no option --name any more; ...`."""
    default: object = None
    """Value with which a file said nothing."""
    option: str | None = None
    """Option of today that takes another value; None: only the default can still be read."""
    value: Callable[[object, Mapping[str, object]], object] = lambda old, _: old
    """Value of `option`, from the old value and the file's other options in today's words."""
    ignored: bool = False
    """True if every old value computed the same, so that none needs a refusal."""


def _offloaded(what: str) -> Former:
    return Former(
        now=f"write --offload {what}",
        default=False,
        option="offload",
        value=lambda _, given: [*_listed(given.get("offload")), what],
    )


FORMER: Mapping[str, Former] = {
    "system_prompt_file": Former(
        now="write --system-prompt file:PATH", option="system_prompt", value=lambda path, _: f"file:{path}"
    ),
    "sandbox_url": Former(now="give the address as --sandbox http://HOST:PORT", option="sandbox"),
    "ray_address": Former(now="give the address as --cluster HOST:PORT, or --cluster auto", option="cluster"),
    "reward_models": Former(
        now="name it as --reward-funcs model:NAME",
        default=(),
        option="reward_funcs",
        value=lambda models, given: [*_listed(given.get("reward_funcs")), *(f"model:{one}" for one in _listed(models))],
    ),
    "optimizer_offload": _offloaded("optimizer"),
    "activation_offload": _offloaded("activations"),
    "parameter_offload": _offloaded("parameters"),
    "cispo_max_ratio": Former(
        now="give --clip-eps-high, which is that ratio less 1",
        option="clip_eps_high",
        value=lambda ratio, given: (
            float(str(ratio)) - 1 if given.get("bound", "cispo") == "cispo" else given.get("clip_eps_high", 0.28)
        ),
    ),
    "pipeline_schedule": Former(now="a pipeline's micro-batches go by 1F1B; leave it out", default="1f1b"),
    "correction_level": Former(
        now="it is part of --rollout-correction, as in token_mask and sequence_truncate",
        option="rollout_correction",
        value=lambda level, given: (
            f"{level}_{given['rollout_correction']}"
            if given.get("rollout_correction") in ("truncate", "mask")
            else given.get("rollout_correction", "none")
        ),
    ),
    "vllm_gpu_share": Former(now="give it as --vllm-memory 0.3", default=0.45, option="vllm_memory"),
    "vllm_cache_gib": Former(
        now="give it as --vllm-memory 2GiB", option="vllm_memory", value=lambda size, _: f"{size}GiB"
    ),
    "max_skipped_updates": Former(
        now="a run always stops at three skipped updates in a row, and --resume continues", ignored=True
    ),
    "placement": Former(now="samplers are always spread over the machines that there are", ignored=True),
    "shard_size": Former(now="slices lie on all processes that have samples of their own", ignored=True),
    "adam_beta1": Former(
        now="give both as --adam-betas 0.9 0.999",
        default=0.9,
        option="adam_betas",
        value=lambda first, given: [first, _numbers(given, "adam_betas", (0.9, 0.999))[1]],
    ),
    "adam_beta2": Former(
        now="give both as --adam-betas 0.9 0.999",
        default=0.999,
        option="adam_betas",
        value=lambda second, given: [_numbers(given, "adam_betas", (0.9, 0.999))[0], second],
    ),
    "dual_clip": Former(
        now="give it as --bound-shape 3 with --bound clip",
        default=0.0,
        option="bound_shape",
        value=lambda most, given: [most] if given.get("bound", "clip") == "clip" else given.get("bound_shape"),
    ),
    "correction_max": Former(
        now="give both bounds as --correction-bounds 0 2",
        default=2.0,
        option="correction_bounds",
        value=lambda most, _: [0.0, most],
    ),
    "ref_sync_steps": Former(
        now="give steps and share as --ref-sync 512 0.6",
        default=0,
        option="ref_sync",
        value=lambda steps, _: [steps, 0.6],
    ),
    "ref_sync_mix": Former(
        now="give steps and share as --ref-sync 512 0.6",
        default=0.6,
        option="ref_sync",
        value=lambda share, given: [_numbers(given, "ref_sync", ())[0], share] if given.get("ref_sync") else None,
    ),
    "overlong_weight": Former(now="scale --reward-weights instead: the penalty counts once", default=1.0),
}
"""By name; read in this order."""


def _numbers(given: Mapping[str, object], option: str, default: Sequence[object]) -> Sequence[object]:
    """Return the numbers of an option that an earlier row may have set."""
    found = given.get(option, default)
    assert isinstance(found, Sequence)
    return found


def _listed(value: object) -> list[str]:
    """Return the names of a list, or of a text with commas; none of null."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    return [] if value is None or str(value).lower() in ("", "none", "null") else str(value).split(",")


def in_todays_words(given: Mapping[str, object]) -> dict[str, object]:
    """Replace the options of earlier versions; values may be text, as in a file, or JSON.

    >>> in_todays_words({"seed": "1", "overlong_weight": "1.0"})
    {'seed': '1'}

    Raises:
        ConfigError: an old option has a value that nothing of today stands for.
    """
    values = {name: value for name, value in given.items() if name not in FORMER}
    for name, former in FORMER.items():
        if name in given and is_told(name, given[name]) and former.option is not None:
            values[former.option] = former.value(given[name], values)
    return values


def is_told(name: str, value: object) -> bool:
    """Return True if a former option's value means something today.

    Raises:
        ConfigError: nothing of today stands for it.
    """
    former, default, word = FORMER[name], FORMER[name].default, str(value).lower()
    # a file's text, or a JSON value: `1` and `1.0` are one number, `null` is None
    if isinstance(default, float):
        says_nothing = float(str(value)) == default
    elif default is None:
        says_nothing = value is None or word in ("none", "null")
    elif isinstance(default, bool):
        says_nothing = word in ("false", "no", "0")
    else:
        says_nothing = not _listed(value) if default == () else value == default or word == str(default).lower()
    if former.ignored or says_nothing:
        return False
    if former.option is None:
        raise ConfigError(f"{name} is no option any more and can only be {default}", remedies=[former.now])
    return True
