"""Routers of mixture-of-experts models: the precision that they compute in, and the experts that they choose.

Under autocast a router computes outside of it, in the precision of its own weights, as a family's code asks. The latest
`topk` over a layer's experts within its forward pass is noted, or answered by choices that an engine has recorded. The
scores of given choices are gathered, so that gradients reach the router. Source: R3, arXiv:2510.11370.

N tokens, R routers of a model, each of which chooses K of E experts. A token's routes are R * K numbers of a byte, or
of two from 256 experts on; the largest number means unknown.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any, cast

import torch
from jaxtyping import Int, UInt8
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.errors import ModelError
from paceline.models.families import layer_plans

_ROUTER = re.compile(r"Router$|TopKGating$|MoE\w*Gate$")
"""Classes of routers, by transformers' names; JetMoe's, HunYuan's and those of remote code differ."""


class Routing:
    """What the routers of a model choose in the latest pass, and what they are to choose in it."""

    def __init__(self, routers: int, experts: int) -> None:
        self.routers, self.experts = routers, experts
        self._choices: list[Int[Tensor, "N K"] | None] = [None] * routers
        """What each router would choose itself; None: it has not chosen by a `topk` over its experts."""
        self._recorded: Int[Tensor, "N R K"] | None = None
        self._sources: Int[Tensor, " S"] | None = None
        self._notes = False

    def begin(self, routes: UInt8[Tensor, "N B"] | None = None, sources: Int[Tensor, " S"] | None = None) -> None:
        """Note the choices of a pass; tokens with known routes take these.

        `sources`: the tokens that `counts` counts. Given routes hold for recomputed activations too.

        Raises:
            ModelError: routes that are not of this model.
        """
        self._choices, self._sources, self._notes = [None] * self.routers, sources, True
        self._recorded = None if routes is None else self._unpacked(routes)

    def rest(self, *, notes: bool = False) -> None:
        """Let the routers choose for themselves in the passes that follow, and note what they choose if `notes`."""
        self._choices, self._recorded, self._sources, self._notes = [None] * self.routers, None, None, notes

    def watched(self, router: int) -> contextlib.AbstractContextManager[object]:
        """Note or answer what a router chooses within the context."""
        return _Choices(self, router) if self._notes else contextlib.nullcontext()

    def choose(self, router: int, scores: Tensor, result: Any) -> Any:
        """Note the result of a router's `topk`, and return it, or the same of given choices."""
        if scores.dim() != 2 or scores.shape[1] != self.experts:  # a choice among groups, or within them
            return result
        choices = result.indices.detach()
        self._choices[router] = choices.to(torch.int16)
        if self._recorded is None:
            return result
        recorded = self._recorded[:, router]
        if recorded.shape != choices.shape:
            raise ModelError(
                f"a router chose {choices.shape[1]} experts for each of {len(choices)} tokens, and recorded routes "
                f"have {recorded.shape[1]} for each of {len(recorded)}; give --router-replay false"
            )
        indices = torch.where(recorded >= 0, recorded, choices)
        return type(result)((scores.gather(-1, indices), indices))

    def chosen(self, some: Int[Tensor, " P"] | None = None) -> UInt8[Tensor, "N B"] | None:
        """Return the routes of the latest pass, as the routers chose themselves; None: none has.

        `some`: the only tokens that the latest routers have seen, where earlier ones have seen more.
        """
        noted = [choices for choices in self._choices if choices is not None]
        if not noted:
            return None
        unknown = torch.full_like(max(noted, key=len), -1)
        every = [unknown if choices is None else choices for choices in self._choices]
        if some is not None:
            every = [
                choices if len(choices) == len(unknown) else unknown.index_copy(0, some, choices) for choices in every
            ]
        chosen = torch.stack(every, dim=1)
        return chosen.flatten(1).to(torch.uint8) if self.experts < 256 else chosen.flatten(1).view(torch.uint8)

    def counts(self) -> dict[str, Tensor]:
        """Count the latest pass over its `sources`; empty where no router has chosen.

        `loads` [R, E] is how many of them an expert was taken by; `routes_known` is the number of their routes that
        were given, and `routes_differ` in how many of those a router chose another set itself.
        """
        noted = [(router, choices) for router, choices in enumerate(self._choices) if choices is not None]
        if not noted or self._sources is None:
            return {}
        choices = torch.stack([choices for _, choices in noted], dim=1).index_select(0, self._sources).long()
        used, differ, known = choices, choices.new_zeros(()), choices.new_zeros(())
        if self._recorded is not None:
            recorded = self._recorded[:, [router for router, _ in noted]].index_select(0, self._sources)
            is_known = (recorded >= 0).all(-1)
            used = torch.where(recorded >= 0, recorded, choices)
            is_other = (recorded.sort(-1).values != choices.sort(-1).values).any(-1)
            known, differ = is_known.sum(), (is_known & is_other).sum()
        loads = choices.new_zeros(len(noted), self.experts)
        flat = used.transpose(0, 1).flatten(1)
        loads.scatter_add_(1, flat, torch.ones_like(flat))
        return {"loads": loads, "routes_known": known, "routes_differ": differ}

    def _unpacked(self, routes: UInt8[Tensor, "N B"]) -> Int[Tensor, "N R K"]:
        width = 1 if self.experts < 256 else 2
        if routes.shape[1] % (self.routers * width):
            raise ModelError(
                f"recorded routes have {routes.shape[1]} bytes for each token, which the model's {self.routers} "
                "routers cannot share evenly: they are of another model; give --router-replay false"
            )
        numbers = routes.contiguous().view(torch.int16) if width == 2 else routes.to(torch.int16)
        numbers = numbers.long().view(len(routes), self.routers, -1)
        return torch.where(numbers == 255, -1, numbers) if width == 1 else numbers


class _Choices(TorchFunctionMode):
    """Hands every `topk` within the context to `Routing.choose`."""

    def __init__(self, routing: Routing, router: int) -> None:
        super().__init__()
        self._routing, self._router = routing, router

    @override
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "topk":
            return result
        return self._routing.choose(self._router, args[0] if args else (kwargs or {})["input"], result)


def connect_routers(model: PreTrainedModel) -> Routing | None:
    """Put the model's routers in charge of their precision and choices, once; None: it has no router."""
    if (routing := routing_of(model)) is not None:
        return routing
    routers = [module for module in model.modules() if _ROUTER.search(type(module).__name__)]
    if not routers:
        return None
    experts = max((plan.experts for plan in layer_plans(model.config.get_text_config())), default=0)
    routing = Routing(len(routers), experts)
    for number, router in enumerate(routers):
        # attributes and a bound method are copied with the model
        router.__dict__.update(routing=routing, router_number=number, forward=MethodType(_forward, router))
    model.__dict__["routing"] = routing
    return routing


def routing_of(model: nn.Module) -> Routing | None:
    """Return what `connect_routers` has connected; None: the model has no router, or is not connected."""
    return cast(Routing | None, vars(model).get("routing"))


def rest_routers(model: nn.Module) -> None:
    """Let a model's routers choose for themselves; nothing where there is none."""
    if (routing := routing_of(model)) is not None:
        routing.rest()


def noted_routes(model: nn.Module, some: Int[Tensor, " P"] | None = None) -> UInt8[Tensor, "N B"] | None:
    """Return `Routing.chosen` of a model's latest pass; None also where it has no router."""
    return None if (routing := routing_of(model)) is None else routing.chosen(some)


def _forward(router: Any, *inputs: Any, **options: Any) -> Any:
    """Compute a router's own forward pass, outside autocast and watched."""
    weight = next(router.parameters(), None)
    with router.routing.watched(router.router_number):
        if weight is None or not torch.is_autocast_enabled(weight.device.type):
            return type(router).forward(router, *inputs, **options)

        def cast_to_weight(value: Any) -> Any:
            is_number = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(weight.dtype) if is_number else value

        with torch.autocast(weight.device.type, enabled=False):
            inputs = tuple(map(cast_to_weight, inputs))
            options = {name: cast_to_weight(value) for name, value in options.items()}
            return type(router).forward(router, *inputs, **options)
