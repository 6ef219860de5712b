"""Hidden states that predict a micro-batch's targets: packed where the model allows it, padded rows elsewhere."""

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from paceline.errors import ModelError, first_line
from paceline.kernels.logprobs import PLAIN, HeadRule
from paceline.models.activation_checkpointing import Activations
from paceline.models.activations import in_main_memory, layers_of, saved_bytes
from paceline.models.attention import NAME, NO_MASK, PackedLayout
from paceline.models.attention_checks import calls_problem, kinds_problem
from paceline.models.experts import experts_by, serve_experts
from paceline.models.families import layer_plans
from paceline.models.fused_layers import fuse_layers, is_fused, restore_layers
from paceline.models.head import decoder_of, measured_head
from paceline.models.parallel.context import Tokens
from paceline.models.plain_forward import MISFITS, computing_in, evaluating, is_noise
from paceline.models.routing import connect_routers, routing_of
from paceline.models.rows import on_device, take_rows
from paceline.models.states import STATEFUL, mixing_layers, open_doors
from paceline.objective.micro_batches import Layout, MicroBatch, one_turn, pack, padded_rows

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision

PROBE_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}
"""Largest relative difference between two right forward passes: rounding, below any mistake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyForward:
    """The way this model's hidden states are computed, and why."""

    kind: Layout
    reason: str
    """Why the model cannot be packed; empty if it is."""
    experts: str = ""
    """Why transformers' own functions compute experts; empty if `models.experts` does, or if there are none."""
    head: HeadRule = PLAIN
    """How logits are made of the hidden states."""
    offload: bool = False
    """True if saved activations wait in main memory."""
    vision: "Vision | None" = field(default=None, repr=False, compare=False)
    """What gives the features of images; None: prompts are text."""

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> Float[Tensor, "N H"]:
        """Return the hidden state after the final norm for each target. `batch` is on the model's device."""
        return self.of(model, Tokens(batch=batch))

    def with_vision(self, vision: "Vision | None") -> "PolicyForward":
        """Return the same way with other images, or those of another model."""
        return replace(self, vision=vision)

    def of(self, model: PreTrainedModel, tokens: Tokens) -> Float[Tensor, "N H"]:
        """Compute this rank's tokens; ModelError if the model takes padded rows only, which ranks cannot share."""
        with self._keeping(model):
            if self.kind == "packed":
                return take_rows(_packed_states(model, tokens, None, vision=self.vision), tokens.batch.sources)
            if tokens.exchange is not None:
                raise ModelError(
                    f"ranks share the tokens of packed micro-batches, and this model computes padded rows "
                    f"({self.reason}); train it with --context-parallel 1"
                )
            return _padded_hidden(model, tokens.batch, self.vision)

    def through(
        self, model: PreTrainedModel, tokens: Tokens, states: Float[Tensor, "M H"] | None
    ) -> Float[Tensor, "M H"]:
        """Return the residual stream after a pipeline's stage, or after the final norm where the stage has it.

        `states`: the stream before it; None: the stage begins with the tokens. ModelError: the model takes padded rows.
        """
        if self.kind == "padded":
            raise ModelError(
                f"a pipeline's stages send packed tokens, and this model computes padded rows ({self.reason}); "
                "train it without a pipeline"
            )
        # a stage computes several micro-batches before it goes back through the first, so no routes are given to it
        tokens = replace(tokens, batch=replace(tokens.batch, routes=None))
        with self._keeping(model):
            return _packed_states(model, tokens, states)

    def _keeping(self, model: PreTrainedModel) -> contextlib.AbstractContextManager[object]:
        return in_main_memory(model) if self.offload else contextlib.nullcontext()


def choose_forward(
    model: PreTrainedModel, compute_dtype: torch.dtype | None = None, vision: "Vision | None" = None
) -> PolicyForward:
    """Try the ways to compute hidden states on a few random tokens, and choose the fastest correct one.

    The reference is the model's own pass over each row alone, in evaluation mode. Padded rows are compared with it in
    the weights' own precision, as rounding may send a token to another expert. The packed path is compared with padded
    rows, in `compute_dtype` too if that is another: first with layers on kernels, where they can be, then without.
    With `vision`, prompts with images are compared too (`vision.probe`).

    ModelError: padded rows differ too, or the model's logits follow from its last hidden states by no `HeadRule`, so
    that log-probabilities computed from hidden states would be wrong.
    """
    chosen = _choose_for_text(model, compute_dtype, vision)
    if vision is None:
        return chosen
    from paceline.models.vision.probe import images_problem  # reads Pillow, which text alone does not need

    tolerances = {dtype: PROBE_TOLERANCE[dtype] for dtype in (model.dtype, compute_dtype or model.dtype)}
    problem = images_problem(model, chosen, vision, tolerances)
    if problem is not None and chosen.kind == "packed":
        restore_layers(model)
        attend_by(model, "sdpa")
        chosen = replace(chosen, kind="padded", reason=problem)
        problem = images_problem(model, chosen, vision, tolerances)
    if problem is not None:
        raise ModelError(f"{type(model).__name__}: {problem}; use a model of another family")
    return chosen


def _choose_for_text(
    model: PreTrainedModel, compute_dtype: torch.dtype | None, vision: "Vision | None"
) -> PolicyForward:
    restore_layers(model)  # of a model that was tried before
    connect_routers(model)
    config = model.config.get_text_config()
    probe = _probe_batch(config.vocab_size, model.device, model.dtype)
    before = config._attn_implementation
    with torch.no_grad():
        precisions = dict.fromkeys((model.dtype, compute_dtype or model.dtype))
        wanted = _wanted(model, probe, tuple(precisions))
        choice = partial(
            PolicyForward, experts=_experts_problem(model, probe, wanted), head=measured_head(model), vision=vision
        )
        if not type(model)._can_set_attn_implementation():
            return choice(kind="padded", reason=f"{type(model).__name__} fixes its own attention")
        reason = kinds_problem(layer_plans(config)) or open_doors(model)
        if vision is not None and not vision.is_causal:
            reason = "tokens of an image see each other"
        if reason is not None:
            return choice(kind="padded", reason=reason)
        attend_by(model, NAME)
        if fuse_layers(model):
            if _disagreement(model, probe, wanted) is None:
                return choice(kind="packed", reason="")
            restore_layers(model)
        reason = _disagreement(model, probe, wanted)
        if reason is None:
            return choice(kind="packed", reason="")
        attend_by(model, before)
    return choice(kind="padded", reason=reason)


def attend_by(model: PreTrainedModel, name: str) -> None:
    """Have a model's language model compute attention by the implementation of this name."""
    is_whole = model.config.get_text_config() is not model.config
    model.set_attn_implementation({"text_config": name} if is_whole else name)


def compute_alike(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Set a model up as `choose_forward` has set up its small twin."""
    if twin.config.get_text_config()._attn_implementation == NAME:
        attend_by(model, NAME)
    connect_routers(model)
    if is_fused(twin):
        fuse_layers(model)
    if experts_by(twin) == NAME:
        serve_experts(model)


def _experts_problem(model: PreTrainedModel, probe: MicroBatch, wanted: Mapping[torch.dtype, Tensor]) -> str:
    """Have experts computed by `models.experts` if that gives the wanted states of padded rows; return why it is not.

    Of half precision, whose rounding sends some tokens to other experts, tokens in the middle are compared.
    """
    before = experts_by(model)
    if before in (None, NAME):
        return ""
    reason = serve_experts(model)
    for dtype, expected in wanted.items():
        if reason is None:
            with computing_in(model, dtype):
                states = _padded_hidden(model, probe)
            difference = _relative_difference(states, expected, typical=dtype.itemsize == 2)
            if not difference <= PROBE_TOLERANCE[dtype]:
                reason = f"hidden states differ by {difference:.0e} from those of transformers' in {dtype}"
    if reason is not None:
        serve_experts(model, before)
    return reason or ""


def _versions(model: PreTrainedModel) -> list[int]:
    """Count in-place changes of each parameter, except those that peft registers anew in each pass."""
    wrappers: list[Any] = [
        wrapper for wrapper in model.modules() if hasattr(wrapper, "parameter_name")
    ]  # of experts' adapters
    anew = {id(getattr(wrapper.get_base_layer(), wrapper.parameter_name)) for wrapper in wrappers}
    return [parameter._version for parameter in model.parameters() if id(parameter) not in anew]


def _wanted(
    model: PreTrainedModel, probe: MicroBatch, precisions: tuple[torch.dtype, ...]
) -> dict[torch.dtype, Tensor]:
    """Return the probe's hidden states of padded rows in each precision, compared with those of each row alone."""
    name, before = type(model).__name__, _versions(model)
    try:
        alone = _own_hidden(model, probe)
        wanted = dict[torch.dtype, Tensor]()
        for dtype in precisions:
            with computing_in(model, dtype):
                wanted[dtype] = _padded_hidden(model, probe)
    except (torch.OutOfMemoryError, ModelError):
        raise
    except MISFITS as error:
        raise ModelError(
            f"{name} does not give hidden states of padded rows as training needs them ({type(error).__name__}: "
            f"{first_line(error)}); use a model of another family"
        ) from error
    if before != _versions(model):
        raise ModelError(
            f"{name} changes its weights between training and evaluation mode, which a checkpoint would take for "
            "trained ones; use a model of another family"
        )
    difference = _relative_difference(wanted[model.dtype], alone)
    if difference <= PROBE_TOLERANCE[model.dtype]:
        return wanted
    with evaluating(model):
        quiet = _relative_difference(_padded_hidden(model, probe), alone) <= PROBE_TOLERANCE[model.dtype]
    if quiet:
        numbers = model.config.get_text_config().to_dict().items()
        noise = [f"{number} {value}" for number, value in numbers if is_noise(number, value) and value > 0]
        why = ", ".join(noise) or "by no number of its configuration"
        raise ModelError(
            f"{name} computes otherwise in training mode than in evaluation mode ({why}), so that another "
            "distribution would be trained than is sampled from; set such numbers to 0 in its config.json"
        )
    raise ModelError(
        f"{name} gives padded rows hidden states that differ by {difference:.0e} from those of each row alone, so that "
        "training would see another model than sampling does; use a model of another family"
    )


def _own_hidden(model: PreTrainedModel, probe: MicroBatch) -> Float[Tensor, "N H"]:
    """Return the hidden state of each target by the model's own pass over each row alone, in evaluation mode."""
    rows = on_device(padded_rows(probe), model.device)
    with evaluating(model):
        states = list[Tensor]()
        for index, real in zip(rows.index, rows.real, strict=True):
            ids = probe.input_ids[index[real]][None]
            states.append(decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0])
    return take_rows(pad_sequence(states, batch_first=True).flatten(0, 1), rows.sources)


def _disagreement(model: PreTrainedModel, probe: MicroBatch, wanted: Mapping[torch.dtype, Tensor]) -> str | None:
    """Return how the packed pass differs from padded rows in any precision; None: by rounding only."""
    plans = layer_plans(model.config.get_text_config())
    for dtype, expected in wanted.items():
        layout = PackedLayout(batch=probe, calls=[])
        try:
            with computing_in(model, dtype):
                states = _packed_states(model, Tokens(batch=probe), None, layout)
            packed = take_rows(states, probe.sources)
        except torch.OutOfMemoryError:
            raise
        except ModelError as unserved:  # no probe is sure to show it: a cap of 50 changes none of a few small scores
            return str(unserved)
        except MISFITS as error:
            failed = f"packed tokens fail with {type(error).__name__}: {first_line(error)}"
            return "; ".join(filter(None, [failed, mixing_layers(plans, layout.served)]))
        # the probe may be shorter than a window; layers on kernels of their own ask the layout for nothing
        problem = calls_problem(layout.calls or [], plans, model.device, dtype)
        if problem is None and not is_fused(model):
            problem = mixing_layers(plans, layout.served)
        if problem is not None:
            return problem
        # of half precision, whose rounding sends some tokens to other experts, those in the middle
        typical = dtype.itemsize == 2 and any(plan.experts for plan in plans)
        difference = _relative_difference(packed, expected, typical=typical)
        if not difference <= PROBE_TOLERANCE[dtype]:  # nor is one that is no number
            return f"packed hidden states differ by {difference:.0e} from the model's own in {dtype}"
    return None


def _packed_states(
    model: PreTrainedModel,
    tokens: Tokens,
    states: Tensor | None,
    layout: PackedLayout | None = None,
    vision: "Vision | None" = None,
) -> Tensor:
    batch = tokens.batch
    if (routing := routing_of(model)) is not None:
        routing.begin(batch.routes, batch.sources)
    entering = {"input_ids": batch.input_ids[None]} if states is None else {"inputs_embeds": states[None]}
    entering["position_ids"] = batch.position_ids[None]
    if batch.media:
        entering = _seeing(vision).packed(model, batch)
    output = decoder_of(model)(
        **entering,
        attention_mask=NO_MASK.to(batch.input_ids.device),
        packed_attention=layout or PackedLayout(batch=batch, exchange=tokens.exchange),
        use_cache=False,
    )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _seeing(vision: "Vision | None") -> "Vision":
    if vision is None:
        raise ModelError("the prompts hold images, and the model was loaded to read text alone")
    return vision


def _padded_hidden(model: PreTrainedModel, batch: MicroBatch, vision: "Vision | None" = None) -> Tensor:
    rows = on_device(padded_rows(batch), batch.input_ids.device)
    if (routing := routing_of(model)) is not None:
        routes = None if batch.routes is None else batch.routes[rows.index.flatten()]
        routing.begin(None if routes is None else routes.where(rows.real.flatten()[:, None], 255), rows.sources)
    body = decoder_of(model)
    if batch.media:
        output = body(**_seeing(vision).padded(model, batch, rows), use_cache=False)
        return take_rows(output.last_hidden_state.flatten(0, 1), rows.sources)
    known = inspect.signature(body.forward).parameters
    positions = {"position_ids": batch.position_ids[rows.index]} if "position_ids" in known else {}
    output = body(input_ids=batch.input_ids[rows.index], attention_mask=rows.real.long(), use_cache=False, **positions)
    return take_rows(output.last_hidden_state.flatten(0, 1), rows.sources)


def _probe_batch(vocab_size: int, device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """Make a batch of two prompts and three completions of different lengths."""
    drawn = torch.randint(vocab_size, (64,), generator=torch.Generator().manual_seed(0), device="cpu")
    tokens: tuple[int, ...] = tuple(drawn.tolist())
    pieces = [(0, tokens[:7], tokens[7:12]), (0, tokens[:7], tokens[12:24]), (1, tokens[24:28], tokens[28:37])]
    samples = [
        one_turn(group=group, prompt_ids=prompt, completion_ids=completion, advantage=0.0)
        for group, prompt, completion in pieces
    ]
    return on_device(pack(samples, [0.0] * len(samples), range(len(samples)), dtype=dtype), device)


def _relative_difference(got: Tensor, wanted: Tensor, *, typical: bool = False) -> float:
    """Return the largest difference relative to the largest number; `typical`: the median of each token's largest."""
    scale = wanted.float().abs().max().clamp_min(1e-6)
    differences = (got.float() - wanted.float()).abs()
    return float((differences.amax(-1).median() if typical else differences.max()) / scale)


def measure_activations(model: PreTrainedModel, forward: PolicyForward, compute_dtype: torch.dtype) -> Activations:
    """Measure saved activations by two short passes, whose difference leaves out what is saved once.

    Saved once are the weights' copies in `compute_dtype`. Attention over longer sequences saves no more per token,
    except keys and values of a prompt, which every completion copies.
    """
    nbytes, tokens = list[int](), list[int]()
    # a scan pads each sequence to a whole chunk, which short ones would count many times over
    length = 64 if any(plan.kind in STATEFUL for plan in layer_plans(model.config.get_text_config())) else 8
    for prompts in (2, 1):  # of so many tokens each, with four completions of as many inputs to each
        samples = [
            one_turn(group=n // 4, prompt_ids=(0,) * length, completion_ids=(0,) * (length + 1), advantage=0.0)
            for n in range(4 * prompts)
        ]
        packed = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=model.dtype)
        with torch.autocast(model.device.type, dtype=compute_dtype, enabled=compute_dtype != model.dtype):
            nbytes.append(saved_bytes(model, partial(forward, model, on_device(packed, model.device))))
        tokens.append(packed.num_forwarded(forward.kind))
    return Activations(
        all_layers=(nbytes[0] - nbytes[1]) / (tokens[0] - tokens[1]),
        layer_input=model.config.get_text_config().hidden_size * model.dtype.itemsize,
        layers=len(layers_of(model)),
    )
