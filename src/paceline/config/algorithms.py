"""Advantages and bounds of the ratio, each in one table: a row has what help, `explain`, formula and model card show.

A new row of `ADVANTAGES` with a baseline and a scale that others have needs no other code; another baseline or scale is
computed in `objective/advantages.py`. The loss of a bound is in `objective/policy_loss.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

STD_EPS = 1e-4
"""Added to a std before dividing, as TRL and ColossalChat do: near-constant rewards do not become +-2.6."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantage:
    """A way to compare the rewards of completions."""

    baseline: Literal["group", "others", "step"]
    """Mean that is subtracted: of the prompt's completions, of the other ones among them, or of all of the step. With
    `step` the scale is of the step too."""
    scale: Literal["none", "group", "step", "differences"]
    """Standard deviation that is divided by: of the group's rewards, of the step's, or of the step's differences from
    their group's mean."""
    formula: str
    """Advantage of a completion of reward R."""
    turn_formula: str | None = None
    """Advantage of turn k, which earned G_k; None: the baseline is not of the group, so turns cannot be compared."""
    source: str | None = None


_REACHED = "the group's episodes that reached turn k"
_REINFORCE_PP = "arXiv:2501.03262"

ADVANTAGES: Mapping[str, Advantage] = {
    "group": Advantage(
        baseline="group",
        scale="group",
        formula=f"(R - mean over group) / (std over group + {STD_EPS:g})",
        turn_formula=f"(G_k - mean over {_REACHED}) / (std of R over group + {STD_EPS:g})",
        source="GRPO, arXiv:2402.03300, section 4.1.2",
    ),
    "batch": Advantage(
        baseline="step",
        scale="step",
        formula=f"(R - mean over step) / (std over step + {STD_EPS:g})",
        source=f"REINFORCE++, {_REINFORCE_PP}",
    ),
    "group_mean_batch_std": Advantage(
        baseline="group",
        scale="differences",
        formula=f"(R - mean over group) / (std of those differences over step + {STD_EPS:g})",
        turn_formula=f"(G_k - mean over {_REACHED}) / (std of R - mean over group over step + {STD_EPS:g})",
        source=f"REINFORCE++ with baseline, {_REINFORCE_PP}",
    ),
    "group_mean_reward_std": Advantage(
        baseline="group",
        scale="step",
        formula=f"(R - mean over group) / (std of R over step + {STD_EPS:g})",
        turn_formula=f"(G_k - mean over {_REACHED}) / (std of R over step + {STD_EPS:g})",
    ),
    "leave_one_out": Advantage(
        baseline="others",
        scale="none",
        formula="R - mean over the others of the group",
        turn_formula=f"G_k - mean over the others of {_REACHED}",
        source="RLOO, arXiv:2402.14740",
    ),
    "none": Advantage(
        baseline="group",
        scale="none",
        formula="R - mean over group",
        turn_formula=f"G_k - mean over {_REACHED}",
        source="Dr. GRPO, arXiv:2503.20783",
    ),
}
CREDITED = tuple(name for name, row in ADVANTAGES.items() if row.turn_formula is not None)
"""Advantages whose baseline is of the group, so that its turns can be compared too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioBound:
    """A bound of the ratio to the old policy."""

    formula: str
    """Policy term of a token, with the fields `r` (the ratio), `low`, `high` and `most` (the largest ratio), and
    `shape`."""
    shape: tuple[float, ...] = ()
    """Usual values of `bound_shape`."""
    shape_length: int = 0
    """Numbers that `bound_shape` takes; 0: none."""
    shape_formula: str = ""
    """Continuation of the formula where there is a shape that is not usual."""
    clip_eps_high: float | None = None
    """Default of the upper bound where it is not that of the options."""
    reads_completion: bool = False
    """True if a token's loss depends on other tokens of its completion."""
    source: str | None = None


BOUNDS: Mapping[str, RatioBound] = {
    "clip": RatioBound(
        formula="-min({r} A, clip({r}, 1 - {low:.12g}, 1 + {high:.12g}) A)",
        shape_length=1,
        shape_formula=", and at most -{shape[0]:.12g} A where A < 0",
        source="DAPO, arXiv:2503.14476, Eq. 8",
    ),
    "cispo": RatioBound(
        formula="-stop_gradient(min({r}, {most:.12g})) A log p_t",
        clip_eps_high=4.0,
        source="MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5",
    ),
    "sapo": RatioBound(
        formula="-(4 / tau) sigmoid(tau ({r} - 1)) A, tau = {shape[0]:.12g} where A > 0, else {shape[1]:.12g}",
        shape=(1.0, 1.05),
        shape_length=2,
        source="SAPO, arXiv:2511.20347",
    ),
    "vespo": RatioBound(
        formula="-stop_gradient(w^k exp(l (1 - w))) A log p_t, "
        "k = {shape[0]:.12g}, l = {shape[1]:.12g} where A >= 0, else {shape[2]:.12g}, {shape[3]:.12g}",
        shape=(2.0, 3.0, 3.0, 2.0),
        shape_length=4,
        reads_completion=True,
        source="VESPO, arXiv:2602.10693",
    ),
    "none": RatioBound(formula="-{r} A"),
}

if TYPE_CHECKING:  # the words that an option takes are the names of its table
    AdvantageName = BoundName = str
else:
    AdvantageName, BoundName = Literal[tuple(ADVANTAGES)], Literal[tuple(BOUNDS)]
