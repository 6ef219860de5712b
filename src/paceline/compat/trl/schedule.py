"""The learning rate's schedule of a `GRPOConfig` as the option `lr_scheduler`, for Python and commands alike."""

import json
from enum import Enum

from paceline.compat.trl.batches import warmup_field
from paceline.compat.trl.fields import Fields
from paceline.compat.trl.translation import keywords_of


def scheduler_words(args: Fields) -> str:
    """Return the schedule with its parameters, such as `cosine(warmup=10, num_cycles=2)`.

    `warmup` counts updates; below 1 it is a share of the run. A parameter that is None is left out.

    Raises:
        ConfigError: `lr_scheduler_kwargs` is no dictionary.
    """
    kind: object = args.lr_scheduler_type
    warmup = getattr(args, warmup_field(args))
    warmup = int(warmup) if warmup >= 1 else warmup or None
    parameters = {"warmup": warmup, **keywords_of(args, "lr_scheduler_kwargs")}
    written = ", ".join(f"{name}={json.dumps(value)}" for name, value in parameters.items() if value is not None)
    return str(kind.value if isinstance(kind, Enum) else kind) + (f"({written})" if written else "")
