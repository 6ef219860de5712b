"""The objective of a configuration as lines of a formula with its numbers, in plain text.

The lines follow from the options that advantages, trainer and averages read; a part that is off has no line. t is a
token of a completion. The code is `training/learner/objective.py` and `micro_batches.token_weights`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paceline.config.algorithms import ADVANTAGES, BOUNDS, STD_EPS
from paceline.config.objective import AdvantageConfig, LossConfig, OptimConfig
from paceline.config.reading import is_code
from paceline.config.sampling import SamplingConfig
from paceline.config.sections import Config
from paceline.objective.advantages import overlong_buffer


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A quantity and its definition."""

    symbol: str
    text: str


def objective(config: Config) -> tuple[Line, ...]:
    """Return the loss, each of its parts, the advantages, and the completions that take part."""
    return (
        *_loss(config.loss),
        *_ratio(config.loss, config.optim, config.sampling),
        *_kl(config.loss),
        *_corrections(config.loss),
        *_average(config.loss, config.sampling),
        *_advantage(config),
        *_selection(config.advantage, config.sampling),
    )


def as_text(lines: Iterable[Line]) -> str:
    """Format one line per quantity, with the symbols aligned."""
    shown = tuple(lines)
    width = max(len(line.symbol) for line in shown)
    return "".join(f"{line.symbol:<{width}} = {line.text}\n" for line in shown)


def _loss(loss: LossConfig) -> Iterator[Line]:
    dropped = "on * " if loss.off_policy_threshold is not None else ""
    weighed = loss.rollout_correction != "none" and loss.bound != "vespo"
    terms = dropped + ("c_t * " if weighed else "") + "policy_t"
    terms += f" + {loss.beta:.12g} * kl_t" if loss.beta > 0 else ""
    chosen = "top_t * " if loss.top_entropy_quantile < 1 else ""
    terms = terms.replace("policy_t", f"{chosen}policy_t")
    coef = "eps" if loss.entropy_target is not None else f"{loss.entropy_coef:.12g}"
    terms += f" - {coef} * {chosen}H_t" if loss.has_entropy_bonus else ""
    kept = "kept * " if loss.skip_threshold is not None else ""
    inner = f"({terms})" if " + " in terms or " - " in terms else terms
    yield Line(symbol="loss", text=f"sum over tokens t of w_t * {kept}{inner}")
    yield Line(symbol="policy_t", text=_policy(loss))


def _policy(loss: LossConfig) -> str:
    r = _r(loss)
    if is_code(loss.bound):
        return f"own: {loss.bound}, of {r}, log p_t, log old_t, log rollout_t, A and H_t"
    bound, low, high = BOUNDS[loss.bound], loss.clip_eps_low, loss.clip_eps_high
    text = bound.formula + (bound.shape_formula if loss.shape else "")
    return text.format(r=r, low=low, high=high, most=1 + high, shape=loss.shape)


def _r(loss: LossConfig) -> str:
    return "r_t" if loss.ratio_level == "token" else "r"


def _ratio(loss: LossConfig, optim: OptimConfig, sampling: SamplingConfig) -> Iterator[Line]:
    level = "p_t / old_t" if loss.ratio_level == "token" else "exp(mean over the completion of log(p_t / old_t))"
    if loss.bound == "vespo":
        also = " and of c_t" if loss.rollout_correction != "none" else ""
        yield Line(symbol="w", text=f"product over the completion of p_t / old_t{also}, in [1e-8, e^20]")
    if loss.bound != "vespo" or (loss.beta > 0 and loss.kl == "k3_ratio"):
        yield Line(symbol=_r(loss), text=level)
    yield Line(symbol="p_t", text=f"the policy's probability of the token, at temperature {sampling.temperature:.12g}")
    updates = optim.num_iterations * optim.num_minibatches
    how = f"{updates} updates: passes {optim.num_iterations}, minibatches {optim.num_minibatches}"
    bites = f"{how}, of which the later ones meet the bounds" if updates > 1 else "1 update, so the ratio is 1"
    yield Line(symbol="old_t", text=f"p_t before the step's first update ({bites})")


def _kl(loss: LossConfig) -> Iterator[Line]:
    if loss.beta > 0:
        estimate = "q_t / p_t - 1 + log(p_t / q_t)"
        penalties = {
            "reverse": "stop_gradient(p_t / old_t) log(p_t / q_t)^2 / 2, with the gradient of KL(policy || reference)",
            "forward": f"stop_gradient(p_t / old_t) ({estimate}), with the gradient of KL(reference || policy)",
            "k3": estimate,
            "k3_ratio": f"{_r(loss)} ({estimate})",
        }
        yield Line(symbol="kl_t", text=penalties[loss.kl])
        moves = ""
        if loss.ref_sync is not None:
            share = loss.ref_sync[1]
            moves = f", every {loss.ref_sync_steps} steps {share:.12g} p + {1 - share:.12g} q"
        yield Line(symbol="q_t", text=f"the reference's probability{moves}")
    if loss.has_entropy_bonus:
        yield Line(symbol="H_t", text="entropy of the policy's distribution at t, nats")
    if loss.entropy_target is not None:
        target, least, most, change = loss.entropy_target
        mean = f"the mean H_t of the update before was at most {target:.12g}"
        how = f"after each such update + {change:.12g} up to {most:.12g}, "
        how += f"after others - {change:.12g} down to {least:.12g}"
        first = min(max(loss.entropy_coef, least), most)
        yield Line(symbol="eps", text=f"0 unless {mean}; {first:.12g} at first, {how}")


def _corrections(loss: LossConfig) -> Iterator[Line]:
    if loss.rollout_correction != "none":
        level, kind = loss.rollout_correction.split("_")
        rho = "old_t / rollout_t" if level == "token" else "product over the completion of old / rollout"
        least, most = loss.correction_bounds
        low, start = (f"max({least:.12g}, ", f"from {least:.12g} ") if least > 0 else ("", "")
        held = {
            "truncate": f"{low}min(rho, {most:.12g}){')' if low else ''}",
            "mask": f"rho {start}up to {most:.12g}, else 0",
        }
        yield Line(symbol="c_t", text=f"{held[kind]}, rho = {rho}")
    if loss.off_policy_threshold is not None:
        drift = f"mean over the completion of log(rollout_t / p_t) > {loss.off_policy_threshold:.12g}"
        yield Line(symbol="on", text=f"0 where A < 0 and {drift}, else 1")
    if loss.rollout_correction != "none" or loss.off_policy_threshold is not None:
        yield Line(symbol="rollout_t", text="the token's probability as the engine reported it")
    if loss.top_entropy_quantile < 1:
        share = f"the top {loss.top_entropy_quantile:.12g} of the update's tokens by H_t"
        yield Line(symbol="top_t", text=f"1 for {share}, else 0")
    if loss.skip_threshold is not None:
        yield Line(
            symbol="kept", text=f"0 where the completion's mean of p_t / old_t > {loss.skip_threshold:.12g}, else 1"
        )


def _average(loss: LossConfig, sampling: SamplingConfig) -> Iterator[Line]:
    weights = {
        "token": "1 / tokens of the update",
        "sequence": "1 / (completions of the update * tokens of the completion)",
        "constant": f"1 / (completions of the update * {sampling.max_completion_length})",
        "sequence_sum": "1 / completions of the update",
        "prompt": "1 / (prompts of the update * tokens of the prompt's completions)",
    }
    yield Line(symbol="w_t", text=weights[loss.average])
    if loss.average_over == "all":
        yield Line(symbol="update", text="with masked completions, of no tokens, and ungraded ones, of advantage 0")


def _advantage(config: Config) -> Iterator[Line]:
    advantage, sampling, discount = config.advantage, config.sampling, config.environment.turn_credit
    row = ADVANTAGES.get(advantage.advantage)
    if row is None:
        yield Line(symbol="A", text=f"own: {advantage.advantage}, of the rewards R of a group")
    else:
        yield Line(symbol="A", text=row.formula if discount is None else row.turn_formula or "")
    if discount is not None:
        earned = f"sum over turns j from the token's turn k on of {discount:.12g}^(j - k) * r_j"
        yield Line(symbol="G_k", text=f"{earned}; alone in turn k, against the mean of R less what was earned before")
        yield Line(symbol="r_j", text="the environment's reward of turn j; at the last turn also what is left of R")
    yield Line(symbol="group", text=f"the {sampling.num_generations} completions of one prompt")
    length = advantage.overlong_share > 0
    environment = {"environment": 1.0} if config.environment.environment else {}
    weighted = {**config.rewards.weights, **environment, **({"overlong": 1.0} if length else {})}
    each = "z({})" if advantage.reward_aggregation == "normalize_then_sum" else "{}"
    terms = [f"{weight:.12g} * {each.format(name)}" for name, weight in weighted.items()]
    yield Line(symbol="R", text=" + ".join(terms))
    if environment:
        yield Line(symbol="environment", text="the environment's own reward of the conversation, where it gives one")
    if advantage.reward_aggregation == "normalize_then_sum":
        yield Line(symbol="z(x)", text=f"(x - mean over group) / (std over group + {STD_EPS:g})")
    if length:
        longest = sampling.max_completion_length
        start = longest - overlong_buffer(advantage.overlong_share, max_length=longest)
        yield Line(symbol="overlong", text=f"0 up to {start} tokens, then a line down to -1 at {longest}")


def _selection(advantage: AdvantageConfig, sampling: SamplingConfig) -> Iterator[Line]:
    """Describe which groups and completions are trained on: groups by their mean, completions by finish reason."""
    if advantage.filter_range is not None:
        low, high = advantage.filter_range
        more = f"; {advantage.oversampling:.12g} prompts sampled for each" if advantage.oversampling > 1 else ""
        refills = f"; up to {advantage.max_refills} rounds to replace others" if advantage.max_refills else ""
        name = advantage.filter_func or "the environment's reward"
        yield Line(symbol="groups", text=f"those with {low:.12g} < mean of {name} < {high:.12g}{refills}{more}")
    if advantage.mask_truncated:
        longest = sampling.max_completion_length
        yield Line(symbol="masked", text=f"completions cut at {longest} tokens: in the group's mean, without gradient")
