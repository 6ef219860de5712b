"""Every kernel in Triton compiles for an H100, without a GPU, and keeps all that it computes with in registers."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SHAPES = {
    "triton_kernels": {
        "add_norm": ("h h h h i f", {"HAS_UPDATE": True, "BLOCK": 1024}, 4),
        "silu_mul": ("h h h i i i", {"BLOCK": 1024}, 4),
        "quantize_rows": ("h q s i", {"BLOCK": 32768}, 16),
        "rotate_and_store": ("h h h h l l l h h h h i i i f", {"HAS_NORM": True, "BLOCK": 128}, 4),
        "merge": ("h s h s l h i i i", {"BLOCK": 128}, 4),
        "statistics": ("h l s s s i f", {"BLOCK": 4096}, 4),
        "gradients": ("h l s s s s i f", {"HAS_LOGPROB": True, "HAS_ENTROPY": True, "BLOCK": 4096}, 4),
    },
    "triton_drawing": {
        "block_masses": ("h s s i f", {"BLOCK": 2048}, 4),
        "draw_from_blocks": ("h d s s l s i f", {"GREEDY": False, "BLOCK": 2048, "NUM_BLOCKS": 128}, 4),
    },
    "triton_training": {
        "add_rms_norm": ("s h s s h h s i f", {"HAS_ADDEND": True, "BLOCK": 1024}, 4),
        "add_rms_norm_backward": (
            "h s s h s s h s i i",
            {"HAS_TOTAL": True, "HAS_ADDEND": True, "HAS_PARTS": True, "ROWS": 16, "BLOCK": 8192},
            16,
        ),
        "gated_product_backward": ("h h h h h h i i i i", {"HAS_PRODUCT": True, "BLOCK": 1024}, 4),
        "turn_heads": ("h s s s h i i i f", {"HEADS": 14, "HAS_NORM": True, "TOKENS": 16, "HALF": 64}, 4),
        "turn_heads_backward": (
            "h h s s s h s i i i i f",
            {"HEADS": 14, "HAS_NORM": True, "TOKENS": 16, "HALF": 64},
            4,
        ),
    },
}
"""By module and kernel: types of the arguments in order, constants, and warps of a program.

h, q, s, d, l: pointers to bfloat16, e4m3, float32, float64 and int64; i, f: numbers. Pointers and integers are
divisible by 16, as they are for common widths.
"""

COMPILED = """
import importlib, json, os, re, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

types = {"h": "*bf16", "q": "*fp8e4nv", "s": "*fp32", "d": "*fp64", "l": "*i64", "i": "i32", "f": "fp32"}
dump = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
found = {}
for module, kernels in json.load(sys.stdin).items():
    module = importlib.import_module("paceline.kernels.cuda." + module)
    functions = {name: one for name, one in vars(module).items() if isinstance(one, triton.runtime.JITFunction)}
    # what returns something is part of a kernel
    found[module.__name__] = [name for name, one in functions.items() if not re.search("^ +return ", one.src, re.M)]
    for name, (letters, constants, warps) in kernels.items():
        kernel = getattr(module, name)
        names = kernel.arg_names
        of_letters = [types[letter] for letter in letters.split()]
        signature = dict(zip(names, of_letters + ["constexpr"] * len(constants), strict=True))
        attributes = {(at,): [["tt.divisibility", 16]] for at, one in enumerate(of_letters) if one != "fp32"}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            said = subprocess.run([dump, "--dump-resource-usage", file.name], stdout=subprocess.PIPE, check=True)
        usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):([0-9]+)", said.stdout.decode())}
        found[name] = usage | {"wide": "ld.global.v4" in made.asm["ptx"]}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled():
    """Kernels by name; in a process of its own, as the interpreter's switch is read when a kernel is defined."""
    apart = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [sys.executable, "-W", "ignore", "-c", COMPILED]
    done = subprocess.run(arguments, input=json.dumps(SHAPES), env=apart, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", SHAPES)
def test_every_kernel_of_a_module_is_compiled(compiled, module):
    assert set(compiled[f"paceline.kernels.cuda.{module}"]) == set(SHAPES[module])


@pytest.mark.parametrize("kernel", [name for kernels in SHAPES.values() for name in kernels])
def test_a_kernel_keeps_all_in_registers(compiled, kernel):
    assert 0 < compiled[kernel]["REG"] <= 128
    assert compiled[kernel]["STACK"] == compiled[kernel]["LOCAL"] == 0


@pytest.mark.parametrize("kernel", ["silu_mul", *SHAPES["triton_training"]])
def test_a_training_kernel_reads_16_bytes_at_a_time(compiled, kernel):
    assert compiled[kernel]["wide"]
