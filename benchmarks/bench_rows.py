"""A million rows: memory of the whole process, and seconds until the first step has begun and ended.

    python benchmarks/bench_rows.py [--rows 1000000] [--source NAME ...] [--threads 2] [--output DIR]

| source  | what is run                                                                              |
|---------|-------------------------------------------------------------------------------------------|
| jsonl   | `paceline train --dataset rows.jsonl --max-steps 1`                                        |
| parquet | the same with the rows in a parquet file                                                   |
| trainer | `GRPOTrainer` with `datasets.load_dataset("parquet", ...)`, whose copy is made beforehand  |

Prompts have 160 tokens under the embedded model's tokenizer, which is trained. Seconds count from the process's start,
its imports included; the step's own are those of its metrics. Memory is the kernel's figure for the process
(`ru_maxrss`).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import QUIET, machine
from running import RESULTS, write_result

ROOT = Path(__file__).parents[1]
SOURCES = ("jsonl", "parquet", "trainer")
TOKENS = 160
STEP = ("--max-steps", "1", "--prompts-per-step", "8", "--num-generations", "4", "--max-completion-length", "16")
OPTIONS = ("--model", "embedded", *STEP, "--max-prompt-length", "200", "--system-prompt", "", "--warmup-steps", "0")
TRAINER = """
import sys, paceline
from datasets import load_dataset

rows = load_dataset("parquet", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
if sys.argv[2]:
    args = paceline.GRPOConfig(
        output_dir=sys.argv[2], max_steps=1, num_generations=4, per_device_train_batch_size=32,
        max_completion_length=16, report_to="none", use_cpu=True,
    )
    even = lambda completions, **columns: [float(len(str(one)) % 2) for one in completions]
    paceline.GRPOTrainer(model="embedded", reward_funcs=[even], args=args, train_dataset=rows).train()
"""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--source", choices=SOURCES, action="append", help="may be given again (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON file")
    asked = parser.parse_args()
    where = machine(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        write = [sys.executable, __file__, "--write"]  # a process of its own: a child's peak starts at its parent's
        subprocess.run([*write, folder, str(asked.rows)], check=True)
        found = {name: measured(name, Path(folder), asked.threads) for name in asked.source or SOURCES}
    result = {"benchmark": "rows", "size": "million", "machine": where, "rows": asked.rows, "tokens": TOKENS}
    print(write_result(asked.output, {**result, "sources": found}))
    return 0


def write_rows(folder: Path, count: int) -> None:
    """The same rows as JSON lines and as parquet, and the copy that `datasets` makes of the latter."""
    import pyarrow
    import pyarrow.parquet

    from paceline.config.sections import ModelConfig
    from paceline.models.pretrained import load_tokenizer

    tokenizer, drawn = load_tokenizer(ModelConfig(model="embedded")), random.Random(0)
    numbers = [str(number) for number in range(10, 99)]
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True)
    overhead = len(empty["input_ids"])
    each = len(tokenizer(" ".join(numbers), add_special_tokens=False)["input_ids"]) / len(numbers)
    words = round((TOKENS - overhead) / each)
    prompts = [" ".join(drawn.choices(numbers, k=words)) for _ in range(count)]
    with (folder / "rows.jsonl").open("w") as lines:
        for prompt in prompts:
            lines.write(json.dumps({"question": prompt, "answer": prompt[:2]}) + "\n")
    columns = {"prompt": prompts, "answer": [prompt[:2] for prompt in prompts]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "rows.parquet", row_group_size=20_000)
    subprocess.run(_trainer(folder, ""), env=_environment(2), check=True, capture_output=True)


def measured(name: str, folder: Path, threads: int) -> dict[str, float]:
    """Seconds until the first step begins and ends, and MiB of the process."""
    run = folder / f"run-{name}"
    train = [sys.executable, "-m", "paceline", "train", "--output-dir", str(run), *OPTIONS, "--reward-funcs", "random"]
    evaluation = ["--eval-steps", "0", "--eval-size", "1", "--eval-reward-func", "random"]
    own = [*train, "--dataset", str(folder / f"rows.{name}"), *evaluation]
    command = _trainer(folder, str(run)) if name == "trainer" else own
    started = time.monotonic()
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(command, env=_environment(threads), stdout=said, stderr=said)
        while not _first_line(run) and process.poll() is None:
            time.sleep(0.05)
        ended = time.monotonic() - started
        _, status, used = os.wait4(process.pid, 0)
        if status:
            said.seek(0)
            raise SystemExit(f"{name} failed: {said.read()[-2000:]}")
    begun = ended - json.loads(_first_line(run))["clock"]["total"]
    figures = {"first_step_begins": begun, "first_step_ends": ended, "mib": used.ru_maxrss / 1024}
    print(name, figures, flush=True)
    return figures


def _first_line(run: Path) -> str:
    """The first step's metrics; empty until they are whole."""
    file = run / "metrics.jsonl"
    text = file.read_text() if file.is_file() else ""
    return text.partition("\n")[0] if "\n" in text else ""


def _trainer(folder: Path, run: str) -> Sequence[str]:
    return [sys.executable, "-c", TRAINER, str(folder / "rows.parquet"), run, str(folder / "copy")]


def _environment(threads: int) -> dict[str, str]:
    return os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_rows(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        raise SystemExit(main())
