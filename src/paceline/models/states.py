"""Recurrent and convolutional layers over packed micro-batches: a prompt's state is computed once and forked.

The mixers of transformers' hybrids call functions of the same few names, and hand a forward pass's options on to them.
A door stands before each such function in the module of the mixer. A call without a packed layout passes it untouched.
With one, a convolution reads each sequence's own rows, and a scan is the module's own function called twice: for the
prompts from a state of zeros, and for the completions from the state at their prompt's end.

M tokens, of Q prompts with at most L tokens and S completions with at most T inputs.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from paceline.errors import ModelError, first_line
from paceline.kernels.recurrence import Scan
from paceline.kernels.states import StateTable, causal_convolution, state_table
from paceline.models.attention import PackedLayout
from paceline.models.families.layer_plan import LayerPlan
from paceline.models.plain_forward import MISFITS
from paceline.models.rows import on_device, take_rows

STATEFUL: Mapping[str, tuple[str, ...]] = {
    "linear_attention": ("scan",),
    "conv": ("convolution",),
    "hybrid": ("scan", "attention"),
    "moe": (),
    "mlp": (),
}
"""What a layer of each of transformers' other kinds asks of a packed layout, beside those that only attend."""

_TRIAL_LENGTHS = ((66, 5), (0, 0, 1), (66, 3, 4))
"""A trial's prompts, owners of completions, and completions: longer than the chunks of 64 tokens of most scans."""
_PIECE = 50
"""Tokens that a trial scans at once for comparison: no border of a piece is one of a chunk."""
_TRIAL_TOLERANCE = 2e-2
"""Largest relative difference in a trial: above what kernels round, below any mistake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanForm:
    """How a scan of transformers is called: [B, T, ...] of each of its inputs, and a state for each of B rows."""

    parameters: tuple[str, ...]
    """Names of its positional parameters, in order."""
    by_token: tuple[str, ...]
    """Those of them with a row for each token."""
    initial: str
    """Option that gives the state before the first token."""
    final: str
    """Option that asks for the state behind the last token."""
    gives_pair: bool
    """True if it gives a pair of outputs and state even where no state is asked for."""


_DELTA_PARAMETERS = ("query", "key", "value", "g", "beta")
_DELTA_RULE = ScanForm(
    parameters=_DELTA_PARAMETERS,
    by_token=_DELTA_PARAMETERS,
    initial="initial_state",
    final="output_final_state",
    gives_pair=True,
)
SCANS = {
    "torch_chunk_gated_delta_rule": _DELTA_RULE,
    "chunk_kimi_delta_attention": _DELTA_RULE,
    "mamba2_chunk_scan": ScanForm(
        parameters=("hidden_states", "dt", "A", "B", "C", "chunk_size"),
        by_token=("hidden_states", "dt", "B", "C"),
        initial="initial_states",
        final="return_final_states",
        gives_pair=False,
    ),
}
"""Scans by the names that transformers gives them."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """A function before one of a mixer's own, which it replaces where a call brings a packed layout."""

    original: Callable[..., Any]
    packed: Callable[..., Any] = field(repr=False)
    """Called with `original`, the layout, and the call's arguments."""

    def __call__(self, *arguments: Any, packed_attention: PackedLayout | None = None, **options: Any) -> Any:
        """Call the mixer's own function, or what stands for it in a packed pass."""
        if packed_attention is None:
            return self.original(*arguments, **options)
        if packed_attention.exchange is not None:
            raise ModelError(
                "recurrent layers carry a state from token to token, and ranks that share a micro-batch's tokens have "
                "none of the tokens between their own; train it with --context-parallel 1"
            )
        return self.packed(self.original, packed_attention, *arguments, **options)


def _convolution(
    original: Callable[..., Any],
    layout: PackedLayout,
    hidden_states: Float[Tensor, "1 D M"],
    weight: Float[Tensor, "D k"],
    bias: Float[Tensor, " D"] | None = None,
    activation: str | None = None,
    **_: object,
) -> Float[Tensor, "1 D M"]:
    layout.served.append("convolution")
    out = causal_convolution(hidden_states[0].T, weight, bias, layout.states.previous)
    if activation is not None:
        out = ACT2FN[activation](out)
    return out.to(hidden_states.dtype).T[None]


def _no_shortcut(original: Callable[..., Any], layout: PackedLayout, *arguments: Any, **options: Any) -> None:
    """Decline to compute convolution, scan and projection at once, which knows no forks."""


def _scan(name: str, original: Callable[..., Any], layout: PackedLayout, *arguments: Any, **options: Any) -> Any:
    layout.served.append("scan")
    form = SCANS[name]
    given = dict(zip(form.parameters[: len(arguments)], arguments, strict=True)) | options
    inputs = [given[name][0] for name in form.by_token]
    function = tried_scan(name, original, inputs[0].device, inputs[0].dtype)
    out = forked(_with_options(form, function, given), inputs, layout.states)[None]
    return (out, None) if form.gives_pair else out


def scan_of(module: nn.Module, dtype: torch.dtype, **options: Any) -> Scan:
    """Return the scan that a mixer's module calls in `dtype`, with these options; `mixer_problem` has found none."""
    (name, original), device = _own_scan(module), next(module.parameters()).device
    return _with_options(SCANS[name], tried_scan(name, original, device, dtype), options)


def mixer_problem(module: nn.Module) -> str | None:
    """Return why the scan of a mixer's module cannot go on from a state; None: it can."""
    name, original = _own_scan(module)
    if not name:
        return f"{type(module).__name__} calls no scan of a known name"
    return scan_problem(name, _torch_form(original), next(module.parameters()).device)


def _own_scan(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    """Return name and function of the scan in a mixer's file, behind its door; no name: there is none."""
    functions = vars(sys.modules[type(module).__module__])
    name = next((name for name in SCANS if name in functions), "")
    function: Callable[..., Any] = functions.get(name, getattr)
    return name, function.original if isinstance(function, Door) else function


def _torch_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return transformers' own scan, where it calls a library's in its place wherever that is installed."""
    own: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return own


@functools.cache
def tried_scan(name: str, function: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> Callable[..., Any]:
    """Return a mixer's function if it gives the numbers of its form in torch on random inputs, else that form.

    transformers calls flash-linear-attention or mamba_ssm where they are installed, whatever the device and precision.
    """
    own = _torch_form(function)
    return function if function is own or scan_problem(name, function, device, dtype) is None else own


def _with_options(form: ScanForm, original: Callable[..., Any], options: Mapping[str, Any]) -> Scan:
    """Return the scan with all of its arguments but inputs and state."""

    def run(blocks: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        asked = dict(zip(form.by_token, blocks, strict=True)) | {form.initial: state, form.final: True}
        outputs, final = original(**(dict(options) | asked))
        return outputs, final

    return run


def forked(scan: Scan, inputs: Sequence[Float[Tensor, "M ..."]], table: StateTable) -> Float[Tensor, "M ..."]:
    """Scan the prompts, then the completions from the states at their prompts' ends; return each token's output."""
    extended = [torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) for rows in inputs]
    outputs, state = scan([take_rows(rows, table.prompts) for rows in extended], None)
    blocks = [outputs.flatten(0, 1)]
    if table.completions.shape[1]:
        starts = take_rows(state, table.prompt_of_sample)
        outputs, _ = scan([take_rows(rows, table.completions) for rows in extended], starts)
        blocks.append(outputs.flatten(0, 1))
    return take_rows(torch.cat(blocks), table.unpad)


_PACKED: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "mamba2_split_conv1d_scan_combined": _no_shortcut,
    **{name: functools.partial(_scan, name) for name in SCANS},
}
"""What stands for a mixer's function in a packed pass, by the function's name in the mixer's module."""


def open_doors(model: PreTrainedModel) -> str | None:
    """Put doors before the functions of a model's mixers, once per process; return why a scan cannot be packed."""
    for name in sorted({type(module).__module__ for module in model.modules()}):
        mixers = sys.modules[name]
        for function, packed in _PACKED.items():
            original = getattr(mixers, function, None)
            if original is None:
                continue
            door = original if isinstance(original, Door) else Door(original=original, packed=packed)
            setattr(mixers, function, door)
            problem = scan_problem(function, _torch_form(door.original), model.device) if function in SCANS else None
            if problem is not None:
                return problem
    return None


def mixing_layers(plans: Sequence[LayerPlan], served: Sequence[str]) -> str | None:
    """Return which layers did not ask a packed layout for what their kind needs, so that they mix sequences.

    `served`: what the layers of one forward pass asked for. None: all asked.
    """
    needed, asked = Counter[str](), Counter(served)
    for plan in plans:
        for need in STATEFUL.get(plan.kind, ("attention",)):
            needed[need] += 1
            if needed[need] > asked[need]:
                return f"some layers are of the kind {plan.kind}, whose {need} takes no packed tokens"
    return None


@functools.cache
@torch.inference_mode(False)
def scan_problem(
    name: str, original: Callable[..., Any], device: torch.device, dtype: torch.dtype = torch.float32
) -> str | None:
    """Try a scan on random numbers, forked, against its form in torch in other pieces, gradients too; None: they agree.

    A probe of the model is shorter than a chunk, so it cannot see how a state passes from one chunk to the next.
    """
    form, generator, (heads, width) = SCANS[name], torch.Generator().manual_seed(0), (2, 16)
    prompts, owners, completions = _TRIAL_LENGTHS
    tokens = sum(prompts) + sum(completions)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cpu").to(device)

    first, second, third, weights = (drawn(tokens, heads, width) for _ in range(4))
    if name == "mamba2_chunk_scan":
        inputs = [first, drawn(tokens, heads), second[:, :1], third[:, :1]]
        options = {"A": -drawn(heads).exp(), "D": drawn(heads), "dt_bias": drawn(heads), "dt_softplus": True}
        options["chunk_size"] = 64
    else:
        decays = drawn(tokens, heads, width) if name == "chunk_kimi_delta_attention" else drawn(tokens, heads)
        inputs = [first, second, third, logsigmoid(decays), drawn(tokens, heads).sigmoid()]
        options = {"use_qk_l2norm_in_kernel": True}
    inputs = [rows if part == "g" else rows.to(dtype) for part, rows in zip(form.by_token, inputs, strict=True)]
    results = list[list[Tensor]]()
    table = on_device(state_table(prompts, owners, completions), device)
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            for compute, function in ((forked, original), (_in_pieces, _torch_form(original))):
                leaves = [rows.detach().requires_grad_() for rows in inputs]
                out = compute(_with_options(form, function, options), leaves, table)
                results.append([out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)])
    except MISFITS as error:
        return f"{name} cannot be packed, it fails with {type(error).__name__}: {first_line(error)}"
    off = max(float((got - wanted).abs().max() / wanted.abs().max()) for got, wanted in zip(*results, strict=True))
    if not off <= _TRIAL_TOLERANCE:  # nor is one that is no number
        return f"{name} cannot be packed, its forked states differ by {off:.0e} from whole ones in torch"
    return None


def _in_pieces(scan: Scan, inputs: Sequence[Float[Tensor, "M ..."]], table: StateTable) -> Float[Tensor, "M ..."]:
    """Return what `forked` returns, one sequence after the other and each in pieces that end within chunks."""
    outputs, states, nothing = list[Tensor](), list[Tensor | None](), len(inputs[0])
    owners = [None] * len(table.prompts) + table.prompt_of_sample.tolist()
    for owner, rows in zip(owners, [*table.prompts, *table.completions], strict=True):
        state = None if owner is None else states[owner]
        for piece in rows[rows < nothing].split(_PIECE):
            output, state = scan([take_rows(tokens, piece[None]) for tokens in inputs], state)
            outputs.append(output[0])
        states.append(state)
    return torch.cat(outputs)
