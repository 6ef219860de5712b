"""Published objectives as values of the same options, each with its source and its differences.

No code branches on a preset: it only fills in options that are not given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A published objective."""

    values: Mapping[str, object]
    """Values by option."""
    source: str
    differs: str
    """Differences from the source, to follow "differs from the paper in"."""


def _preset(*, source: str, differs: str, **values: object) -> Preset:
    return Preset(values=values, source=source, differs=differs)


PRESETS: Mapping[str, Preset] = {
    "grpo": _preset(
        advantage="group",
        clip_eps_low=0.2,
        clip_eps_high=0.2,
        average="sequence",
        beta=0.04,
        kl="reverse",
        source="DeepSeekMath, arXiv:2402.03300, Eq. 3",
        differs="the penalty's gradient, which is that of the reverse KL that the paper names, not that of the forward "
        "KL, which its estimator has when differentiated; the clip bound, which the paper does not tell; and 1e-4 "
        "added to the standard deviation",
    ),
    "dapo": _preset(
        advantage="group",
        clip_eps_low=0.2,
        clip_eps_high=0.28,
        average="token",
        beta=0.0,
        filter_range=(0.0, 1.0),
        max_refills=3,
        overlong_share=0.2,
        source="DAPO, arXiv:2503.14476, Eq. 8, 11 and 13",
        differs="sampling again three times at most for groups that are all right or all wrong, where the paper goes "
        "on until the batch is full; the number of updates per batch of rollouts, sixteen there, one unless "
        "--num-minibatches says otherwise; and 1e-4 added to the standard deviation",
    ),
    "dr_grpo": _preset(
        advantage="none",
        clip_eps_low=0.2,
        clip_eps_high=0.2,
        average="constant",
        beta=0.0,
        source="Dr. GRPO, arXiv:2503.20783, section 3.2",
        differs="nothing but the scale 1 / max_completion_length, which its code has and its formula leaves out",
    ),
    "bnpo": _preset(
        advantage="group",
        clip_eps_low=0.2,
        clip_eps_high=0.2,
        average="token",
        beta=0.0,
        source="the loss of this name in TRL",
        differs="its denominator, the tokens of the whole update, not of a micro-batch; the paper of this name "
        "(arXiv:2506.02864) is about another thing, a reward normalised by a Beta distribution",
    ),
    "gspo": _preset(
        advantage="group",
        ratio_level="sequence",
        clip_eps_low=3e-4,
        clip_eps_high=4e-4,
        average="sequence",
        beta=0.0,
        source="GSPO, arXiv:2507.18071, Eq. 5 and 7",
        differs="the number of updates per batch of rollouts, four there, one unless --num-minibatches says otherwise: "
        "with one the bounds never bite; and 1e-4 added to the standard deviation",
    ),
    "cispo": _preset(
        advantage="group",
        bound="cispo",
        clip_eps_high=4.0,
        average="token",
        beta=0.0,
        source="MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5",
        differs="the upper bound, which the paper does not tell and ScaleRL sets near 5 (neither has a lower bound); "
        "the number of updates per batch of rollouts, several there, one unless --num-minibatches says otherwise: with "
        "one every weight is 1; and 1e-4 added to the standard deviation",
    ),
    "rloo": _preset(
        advantage="leave_one_out",
        bound="none",
        average="constant",
        beta=0.05,
        kl="reverse",
        source="RLOO, arXiv:2402.14740",
        differs="the scale 1 / max_completion_length; and the KL, which stands in the loss token by token instead of "
        "in the reward, so that a token answers for its own KL and not for that of the tokens after it",
    ),
    "reinforce_pp": _preset(
        advantage="group_mean_batch_std",
        clip_eps_low=0.2,
        clip_eps_high=0.2,
        average="token",
        beta=0.01,
        kl="reverse",
        source="REINFORCE++ with baseline, arXiv:2501.03262",
        differs="the batch's mean and standard deviation, of completions rather than of tokens: that mean is 0 after "
        "the group's is taken off; and 1e-4 added to the standard deviation",
    ),
    "scalerl": _preset(
        advantage="group_mean_batch_std",
        bound="cispo",
        clip_eps_high=4.0,
        average="prompt",
        beta=0.0,
        filter_range=(0.0, 1.0),
        max_refills=0,
        source="ScaleRL, arXiv:2510.13786, section 3.2",
        differs="what is not in the loss: generation is not asynchronous, prompts that are mostly solved are not left "
        "out of later epochs, long thoughts are not interrupted, and with bfloat16 products the logits are rounded to "
        "it before they are float32; and 1e-4 added to the standard deviation",
    ),
}


if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[tuple(PRESETS)]


def preset_values(name: object) -> Mapping[str, object]:
    """Return the options that a preset sets; none without a preset."""
    return {} if name is None else PRESETS[str(name)].values
