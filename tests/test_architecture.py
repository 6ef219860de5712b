"""The floors of the house: an import only goes down, or stays inside one room."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paceline"

FLOORS = {
    0: {"errors", "types", "products", "flash", "embedded_models", "windows", "allocator", "headway"},
    1: {
        "config",
        "losses",
        "advantages",
        "alarms",
        "batching",
        "recomputing",
        "metrics",
        "intervals",
        "at_k",
        "schedule",
        "extraction",
        "programs",
    },
    1.5: {
        "native",
        "cuda",
        "parallel",
        "pulse",
        "plain_forward",
        "model_places",
        "devices",
        "formula",
        "comparisons",
        "learning",
    },
    1.75: {"writing", "pretrained", "weight_headers", "saved"},
    2: {
        "data",
        "rewards",
        "sandbox",
        "models",
        "engines",
        "checkpoint",
        "rundir",
        "console",
        "stopping",
        "timeline",
        "watchdog",
        "trackers",
    },
    2.5: {"report"},
    3: {"rollouts", "learner", "evaluate", "reward_context", "audit", "summary", "plan", "browsing", "card"},
    3.5: {"preparing"},
    4: {"train"},
    4.5: {"cluster", "spmd"},
    5: {"api"},
    5.25: {"dialects"},
    5.5: {"cli"},
    6: {"__main__", "__init__"},
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}

HEAVY = {
    "vllm": "engines",
    "triton": "cuda",
    "ray": "cluster",
    "peft": "models",
    "datasets": "data",
    "math_verify": "rewards",
    "wandb": "trackers",
    "trackio": "trackers",
    "mlflow": "trackers",
    "tensorboard": "trackers",
}
"""Libraries that stay in one room."""

INSIDE = SOURCE / "sandbox" / "inside"
"""What runs in a confined process of its own: there, and there only, programs are executed."""

OUTSIDE_WORLD = {"os", "pathlib", "time", "socket", "subprocess", "threading", "random", "tempfile", "shutil"}
"""What floors 0 and 1 may not know: files, clocks, networks, processes, global random state."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of everything imported anywhere in the file, functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            yield node.module or ""


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_room_has_a_floor_and_every_floor_has_its_rooms():
    rooms = {room_of(path) for path in modules()} - {"__init__"}
    assert rooms | {"__init__"} == set(FLOOR_OF)


@pytest.mark.parametrize("room", [p for p in modules() if p.name == "__init__.py" and p.parent != SOURCE], ids=name_of)
def test_a_room_that_lists_its_files_lists_all_of_them_and_none_that_is_gone(room):
    text = ast.get_docstring(ast.parse(room.read_text())) or ""
    there = {path.name for path in room.parent.iterdir() if path.suffix in {".py", ".c", ".h"}}
    named, first_words = (set(re.findall(rf"{start}(\w+\.[pch]y?)\b", text)) for start in (r"", r"(?m)^ *"))
    assert not named or named | {"__init__.py"} >= there
    assert first_words <= there


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_an_import_goes_down_or_stays_in_its_room(path):
    room = room_of(path)
    for name in imports_of(path):
        if name.startswith("paceline."):
            other = name.split(".")[1]
            assert other == room or FLOOR_OF[other] < FLOOR_OF[room], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_heavy_library_stays_in_its_room(path):
    for name in imports_of(path):
        library = name.split(".")[0]
        assert HEAVY.get(library, room_of(path)) == room_of(path), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", [p for p in modules() if FLOOR_OF[room_of(p)] <= 1], ids=name_of)
def test_the_lower_floors_know_nothing_of_the_outside_world(path):
    assert not {name.split(".")[0] for name in imports_of(path)} & OUTSIDE_WORLD


@pytest.mark.parametrize("path", [p for p in modules() if room_of(p) in {"config", "errors", "types"}], ids=name_of)
def test_the_configuration_needs_no_torch(path):
    assert not any(name.split(".")[0] in {"torch", "transformers", "jaxtyping"} for name in imports_of(path))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_untrusted_text_never_becomes_code(path):
    tree = ast.parse(path.read_text())
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    runs_programs = INSIDE in path.parents and path.stem in {"program", "calling"}
    assert runs_programs or not calls & {"eval", "exec", "compile", "__import__"}
    assert not {name.split(".")[0] for name in imports_of(path)} & {
        "pickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
    }


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_room_is_named_for_an_idea_and_short_enough_to_hold_in_mind(path):
    assert path.stem not in {"utils", "util", "helpers", "common", "manager", "handler", "misc"}
    assert len(path.read_text().splitlines()) <= 400
