"""Numbers of a run for a person and for a file, as transformers' scripts print and save them."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

ALL_RESULTS = "all_results.json"


def metrics_text(split: str, metrics: Mapping[str, Any]) -> str:
    """A heading and one aligned line per number, in alphabetical order.

    >>> print(metrics_text("train", {"train_loss": 0.123456, "n": 3}))
    ***** train metrics *****
      n          =      3
      train_loss = 0.1235
    """
    shown = {name: _shown(name, metrics[name]) for name in sorted(metrics)}
    widths = (max(map(len, shown), default=0), max(map(len, shown.values()), default=0))
    lines = [f"  {name:<{widths[0]}} = {value:>{widths[1]}}" for name, value in shown.items()]
    return "\n".join([f"***** {split} metrics *****", *lines])


def write_metrics(folder: Path, split: str, metrics: Mapping[str, Any], *, combined: bool) -> None:
    """Write `{split}_results.json` and, where combined, add the numbers to those of `all_results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{split}_results.json", metrics)
    if combined:
        file = folder / ALL_RESULTS
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        _write(file, {**earlier, **metrics})


def _write(file: Path, metrics: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(metrics), indent=4, sort_keys=True), encoding="utf-8")


def _shown(name: str, value: Any) -> str:
    if name.endswith("_runtime"):
        return f"{timedelta(seconds=int(value))}.{int(value % 1 * 100):02d}"
    return str(round(value, 4)) if isinstance(value, float) else str(value)
