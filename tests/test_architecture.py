"""The plan of the house, held by the imports of every file: an import only goes down, or stays inside its package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paceline"

FLOORS = (
    {"types", "errors"},
    {"base_directory", "config", "metrics", "http"},
    {"kernels"},
    {"runtime", "objective"},
    {"processes"},
    {"sandbox", "chat"},
    {"data", "openai_api"},
    {"rewards", "models", "environments"},
    {"engines", "checkpoints"},
    {"reports", "episodes"},
    {"training"},
    {"workers", "serving"},
    {"library"},
    {"compat"},
    {"cli"},
    {"__main__", "__init__"},
)
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}

HEAVY = {
    "vllm": "engines/vllm",
    "triton": "kernels/cuda",
    "ray": "workers/ray",
    "peft": "models",
    "httpx2": "http",
    "mcp": "environments/builtin",
    "mcp_types": "environments/builtin",
    "gymnasium": "environments/adapters",
    "textarena": "environments/adapters",
    "nltk": "environments/adapters",
    "skyrl_gym": "environments/adapters",
    "openenv": "environments/adapters",
    "datasets": "data",
    "math_verify": "rewards",
    "wandb": "reports/trackers",
    "trackio": "reports/trackers",
    "mlflow": "reports/trackers",
    "tensorboard": "reports/trackers",
}
"""Libraries that stay in one place."""

RUNS_PROGRAMS = {"sandbox/inside/program.py"}
"""What runs in a confined process of its own: there, and there only, programs are executed."""

PURE = {"types", "errors", "config", "metrics", "objective"}
OUTSIDE_WORLD = {"os", "pathlib", "time", "socket", "subprocess", "threading", "random", "tempfile", "shutil"}
"""What pure packages may not know: files, clocks, networks, processes, global random state."""

WITHOUT_TORCH = (
    *("types", "errors", "config", "metrics", "sandbox", "processes", "http", "environments/hosting"),
    *("models/families", "models/places", "models/weight_headers"),
)
TORCH = {"torch", "transformers", "jaxtyping"}

FRAGMENTS = {"That", "Of", "Whether", "Which", "Whose"}
"""First words of a docstring that only continues the name above it."""

LONGEST = 400
"""Lines of a file."""

NAMES = tuple(str(path.relative_to(SOURCE)) for path in sorted(SOURCE.rglob("*.py")))
"""Every file."""


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every file, parsed once, and by the process alone that runs these tests: all processes collect them."""
    return {name: ast.parse((SOURCE / name).read_text()) for name in NAMES}


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Dotted names of everything imported anywhere in the file, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.fixture(scope="module")
def imports(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Dotted names that each file imports."""
    return {name: sorted(set(imports_of(tree))) for name, tree in trees.items()}


@pytest.fixture(scope="module")
def libraries(imports: dict[str, list[str]]) -> dict[str, set[str]]:
    """Packages that each file imports from."""
    return {name: {dotted.split(".")[0] for dotted in names} for name, names in imports.items()}


def package_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def test_every_package_has_a_floor_and_every_floor_has_its_packages():
    assert {package_of(name) for name in NAMES} == set(FLOOR_OF)


def test_an_import_goes_down_or_stays_in_its_package(imports):
    found = [
        f"{name} imports {one}"
        for name, dotted_names in imports.items()
        for one in dotted_names
        if one.startswith(".")
        or (
            one.startswith("paceline.")
            and one.split(".")[1] != package_of(name)
            and FLOOR_OF[one.split(".")[1]] >= FLOOR_OF[package_of(name)]
        )
    ]
    assert not found


def files_imported(tree: ast.Module) -> Iterator[str]:
    """Our own files that a file imports, also inside functions and for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # what is imported from a package may be a file of it
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in FILE_OF else node.module or "" for name in names]
        else:
            continue
        yield from (FILE_OF[name] for name in names if name in FILE_OF)


FILE_OF = {
    ".".join(("paceline", *name.removesuffix(".py").split("/"))).removesuffix(".__init__"): name for name in NAMES
}
"""Every file, by its dotted name."""
FACE = "__init__.py"
"""What it imports is for type checkers: it fetches the others at first use. Files below take the version from it."""


def test_no_circle_of_imports_inside_a_package_either(trees):
    imported = {name: set(files_imported(tree)) for name, tree in trees.items() if name != FACE}

    def reached(name: str) -> set[str]:
        found, ahead = set[str](), [name]
        while ahead:
            new = imported.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    below = {name: reached(name) for name in imported}
    circles = {tuple(sorted(other for other in below[name] if name in below.get(other, ()))) for name in imported}
    assert circles == {()}


def offered(tree: ast.Module) -> set[str]:
    """Names in the `__all__` of a file."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]
    ]
    return {name for value in values for name in ast.literal_eval(value)}


def test_a_name_is_imported_from_the_file_that_defines_it(trees):
    """An `__init__` that imports uses what it imports, or offers it to authors of code in its `__all__`."""
    found = []
    for name, tree in trees.items():
        if name.endswith("/__init__.py"):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | offered(tree)
            bound = [alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
                     for alias in node.names]  # fmt: skip
            found += [f"{name} re-exports {one}" for one in bound if one not in used]
    assert not found


def test_a_heavy_library_stays_in_its_place(libraries):
    found = [
        f"{name} imports {library}"
        for name, imported in libraries.items()
        for library in imported & HEAVY.keys()
        if not name.startswith(HEAVY[library])
    ]
    assert not found


def test_the_pure_packages_know_nothing_of_the_outside_world(libraries):
    found = {
        name: outside
        for name, imported in libraries.items()
        if package_of(name) in PURE and (outside := imported & OUTSIDE_WORLD)
    }
    assert not found


def test_what_must_start_quickly_needs_no_torch(libraries):
    found = {
        name: heavy
        for name, imported in libraries.items()
        if name.removesuffix(".py").startswith(WITHOUT_TORCH) and (heavy := imported & TORCH)
    }
    assert not found


def test_untrusted_text_never_becomes_code(trees, libraries):
    found = []
    for name, tree in trees.items():
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if name not in RUNS_PROGRAMS:
            found += [f"{name} calls {one}" for one in calls & {"eval", "exec", "compile", "__import__"}]
        unsafe = libraries[name] & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
        found += [f"{name} imports {one}" for one in unsafe]
    assert not found


def test_a_file_is_named_for_an_idea_and_short_enough_to_hold_in_mind():
    vague = {"utils", "util", "helpers", "common", "manager", "handler", "misc"}
    assert not [name for name in NAMES if vague & set(name.removesuffix(".py").split("/"))]
    lengths = {name: len((SOURCE / name).read_text().splitlines()) for name in NAMES}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST}


def test_a_package_that_lists_its_files_lists_all_of_them_and_none_that_is_gone(trees):
    for name, tree in trees.items():
        text = ast.get_docstring(tree) or ""
        if name.endswith("/__init__.py"):
            there = {path.name for path in (SOURCE / name).parent.iterdir() if path.suffix in {".py", ".c", ".h"}}
            named, first_words = (set(re.findall(rf"{start}(\w+\.[pch]y?)\b", text)) for start in (r"", r"(?m)^ *"))
            assert not named or named | {"__init__.py"} >= there, f"{name} does not list {there - named}"
            assert first_words <= there, f"{name} lists {first_words - there}"


def described(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings of the file, its classes and functions, and the strings below fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for before, after in zip([None, *node.body], node.body, strict=False):
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and (
                    before is None or isinstance(before, ast.Assign | ast.AnnAssign)
                ):  # fmt: skip
                    yield after.value


def test_a_docstring_stands_alone(trees):
    """A fragment such as "Of the set." continues a name; `typing_extensions.override` replaces "See `Base`."."""
    found = [
        f"{name}:{text.lineno} begins with {words[0]}"
        for name, tree in trees.items()
        for text in described(tree)
        if (words := str(text.value).split()) and (words[0] in FRAGMENTS or str(text.value).startswith("See `"))
    ]
    assert not found


def test_a_class_or_type_has_a_name_of_its_own(trees):
    """A capitalised name that is bound at the top of two files means two things."""
    places: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            bound = (
                [node.name]
                if isinstance(node, ast.ClassDef)
                else [one.id for one in targets if isinstance(one, ast.Name)]
            )
            for one in bound:
                if re.fullmatch(r"[A-Z][a-z]\w*", one):
                    places.setdefault(one, []).append(name)
    assert not {one: files for one, files in places.items() if len(files) > 1}
