"""What `paceline plan` says of each recipe, into its head and into docs/recipes.md: `make recipes` runs it.

    python -m scripts.recipes

Nothing is downloaded. A model's config.json is written from its published figures, and data sets are a few rows with
the columns of the named ones, as the memory of a plan depends on no more. `tests/test_recipes.py` compares.
"""

import contextlib
import io
import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.main import main as paceline
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
RECIPES, PAGE = ROOT / "recipes", ROOT / "docs" / "recipes.md"
PLANNED = "# Planned, not measured:"
TABLE = "<!-- recipes -->", "<!-- end of recipes -->"

QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32_768, "rope_theta": 1e6, "tie_word_embeddings": True}
QWEN3 = {**QWEN2, "model_type": "qwen3", "max_position_embeddings": 40_960, "head_dim": 128, "vocab_size": 151_936}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "rope_theta": 1e5,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "vocab_size": 262_144,
    "max_position_embeddings": 32_768,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "tie_word_embeddings": True,
}
QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "tie_word_embeddings": True,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "max_position_embeddings": 131_072,
    "head_dim": 64,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "tie_word_embeddings": False,
}


def _decoder(
    family: Mapping[str, object], layers: int, width: int, inner: int, heads: int, kv_heads: int, **own: object
):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner}
    return {**family, **sizes, "num_attention_heads": heads, "num_key_value_heads": kv_heads, **own}


def _with_images(text: Mapping[str, object], kind: str) -> Mapping[str, object]:
    """A checkpoint that also reads images, whose language model this is."""
    return {"model_type": kind, "tie_word_embeddings": text["tie_word_embeddings"], "text_config": text}


MODELS: Mapping[str, Mapping[str, object]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _decoder(QWEN2, 24, 896, 4864, 14, 2, vocab_size=151_936),
    "Qwen/Qwen2.5-1.5B-Instruct": _decoder(QWEN2, 28, 1536, 8960, 12, 2, vocab_size=151_936),
    "Qwen/Qwen2.5-7B-Instruct": _decoder(
        QWEN2, 28, 3584, 18_944, 28, 4, vocab_size=152_064, tie_word_embeddings=False
    ),
    "Qwen/Qwen3-1.7B": _decoder(QWEN3, 28, 2048, 6144, 16, 8),
    "Qwen/Qwen3-4B": _decoder(QWEN3, 36, 2560, 9728, 32, 8),
    "Qwen/Qwen3.5-0.8B": _with_images(
        _decoder(QWEN3_5, 24, 1024, 3584, 8, 2, linear_num_value_heads=16), "qwen3_5"
    ),
    "Qwen/Qwen3.5-4B": _with_images(
        _decoder(QWEN3_5, 32, 2560, 9216, 16, 4, linear_num_value_heads=32), "qwen3_5"
    ),
    "google/gemma-3-1b-it": _decoder(GEMMA3, 26, 1152, 6912, 4, 1),
    "unsloth/gpt-oss-20b-BF16": _decoder(GPT_OSS, 24, 2880, 2880, 64, 8, num_local_experts=32),
    "meta-llama/Llama-3.2-1B-Instruct": _decoder(LLAMA, 16, 2048, 8192, 32, 8, head_dim=64),
    "meta-llama/Llama-3.2-3B-Instruct": _decoder(LLAMA, 28, 3072, 8192, 24, 8, head_dim=128),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _decoder(SMOLLM2, 30, 576, 1536, 9, 3),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _decoder(SMOLLM2, 32, 960, 2560, 15, 5),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _decoder(SMOLLM2, 24, 2048, 8192, 32, 32),
    "HuggingFaceTB/SmolLM3-3B": _decoder(
        SMOLLM2, 36, 2048, 11_008, 16, 4, model_type="smollm3", vocab_size=128_256, max_position_embeddings=65_536,
        rope_theta=5e6,
    ),
}  # fmt: skip
"""Of the config.json of each model, what its shape follows from."""

TASKS = {
    "gsm8k": "GSM8K",
    "gsm8k-lora": "GSM8K, an adapter",
    "gsm8k-tools": "GSM8K with tools, an agent",
    "guess": "a game of several turns, an agent",
    "math": "MATH",
    "countdown": "Countdown",
    "code": "programs with tests",
}
HARDWARE = {
    "1x24gb": "1 card of 24 GB",
    "1x80gb": "1 card of 80 GB",
    "1x141gb": "1 card of 141 GB",
    "8x80gb": "8 cards of 80 GB",
    "2x8x80gb": "2 machines of 8 cards of 80 GB",
}
SAID = re.compile(r"Of each of |of each process|in all +[\d.]+|.+, in main memory +|Peak |\d+ of \d+ layers ")
"""Begin the lines of a plan that a head repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One file of `recipes/`."""

    path: Path
    text: str

    @property
    def options(self) -> dict[str, object]:
        """The options as the file gives them."""
        return parse_yaml(self.text, self.path.name)

    @property
    def head(self) -> list[str]:
        """The comment at its top, without what was planned."""
        lines = self.text.splitlines()
        at = lines.index(PLANNED)
        return lines[: at + 2]

    @property
    def body(self) -> list[str]:
        """All from the first option on."""
        lines = self.text.splitlines()
        return lines[next(at for at, line in enumerate(lines) if not line.startswith("#")) :]

    @property
    def commands(self) -> list[list[str]]:
        """The commands of the head as words, the one that plans last."""
        return [shlex.split(line.removeprefix("#"), comments=True) for line in self.head if line.startswith("#   ")]

    def with_plan(self, said: list[str]) -> str:
        """The file with these lines of a plan in its head."""
        return "\n".join([*self.head, *(f"#     {line}" for line in said), *self.body, ""])


def recipes() -> list[Recipe]:
    """Return all of them, cards by cards."""
    found = [Recipe(path=path, text=path.read_text(encoding="utf-8")) for path in RECIPES.glob("*.yaml")]
    places = list(HARDWARE)
    return sorted(found, key=lambda one: (places.index(one.path.stem.rpartition("-")[2]), one.path.name))


def planned(recipe: Recipe, place: Path) -> list[str]:
    """Do the head's own `paceline plan` on the published shape; return the lines that a head repeats.

    Raises:
        RuntimeError: the run would not fit, or the command is refused.
    """
    model, rows = place / recipe.path.stem, place / "rows.jsonl"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODELS[str(recipe.options["model"])]))
    rows.write_text(json.dumps({"question": "2 + 2?", "answer": "4"}) + "\n")
    command, *words = recipe.commands[-1][1:]
    words[words.index("--config") + 1] = str(recipe.path)
    stand_ins = ("--model", str(model), "--dataset", str(rows), "--eval-dataset", str(rows), "--allow-overlap")
    out, refused = io.StringIO(), io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(refused):
        status = paceline([command, *words, *stand_ins])
    if status:
        raise RuntimeError(f"{recipe.path.name}: {refused.getvalue()}")
    return [line for line in out.getvalue().splitlines() if SAID.match(line)]


def row(recipe: Recipe, said: list[str]) -> str:
    """Return the line of the page's table."""
    config, text = build_config(recipe.options), "\n".join(said)
    name, _, hardware = recipe.path.stem.rpartition("-")
    task = max((one for one in TASKS if name.endswith(f"-{one}")), key=len)
    peaks = re.findall(r"^Peak ([\d.]+) GiB", text, re.MULTILINE)
    peaks += re.findall(r"^in all +([\d.]+)  GiB", text, re.MULTILINE)
    memory = " and ".join(f"{float(one):.1f}" for one in peaks)
    cells = [
        f"[`{recipe.path.name}`](../recipes/{recipe.path.name})",
        config.model.model.partition("/")[2],
        TASKS[task],
        HARDWARE[hardware],
        memory,
        f"{config.loop.max_steps}",
    ]
    return f"| {' | '.join(cells)} |"


def page(text: str, rows: list[str]) -> str:
    """Return the page with these rows in its table."""
    head = (
        "| recipe | model | task | hardware | memory, GiB | steps |",
        "|---|---|---|---|--:|--:|",
    )
    start, end = TABLE
    before, after = text.partition(start)[0], text.partition(end)[2]
    return "\n".join([f"{before}{start}\n", *head, *rows, f"\n{end}{after}"])


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for recipe in recipes():
            said = planned(recipe, Path(place))
            recipe.path.write_text(recipe.with_plan(said), encoding="utf-8")
            rows.append(row(recipe, said))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
