"""ColossalChat's own example commands, as its documents have them, and the same on rows and models of a test."""

import json
import shlex
from pathlib import Path

BOXED = r'-s "Please reason step by step, and put your final answer within \\boxed{}."'
SINGLE_MACHINE = rf"""
python rl_example.py \
--dataset /path/to/train_data.jsonl \
--model /path/to/Qwen2.5-3B/ \
-t 4 -i 4 \
-b vllm \
-ibs 2 -tbs 4 -tMbs 1 -tmbs 4 -imbs 1 \
-rt boxed \
-g 4 \
-ibs 1 \
-tbs 2 \
-tMbs 1 \
-tmbs 2 \
-imbs 1 \
{BOXED} \
-tMbs 8 \
-p GRPO-Train-Align-Debug"""
SEVERAL_MACHINES = rf"""
python rl_example.py \
  -m /path/to/Qwen2.5-Math-7B/ \
  -d /path/to/train_data.jsonl \
  --master_address '10.0.0.3' \
  -t 16 \
  -i 16 \
  -p GRPO-Train-Align-Debug \
  -g 2 \
  -ibs 1 \
  -tbs 2 \
  -tMbs 1 \
  -tmbs 2 \
  -imbs 1 \
  -b vllm \
  -e 2 \
  -rt boxed \
  {BOXED}"""
BUBBLES = (
    "python rl_example_zero_bubble.py --dataset D --model M -t 4 -i 4 -b vllm -a DAPO -imbs 8 -ibs 8 -tbs 8 -e 2 "
    f"-rt boxed -si 25 {BOXED} -tMbs 2 -tmbs 2 -p P -zero 2 -mpt 512 -mnt 3584"
)

ROWS = [{"messages": {"role": "user", "content": f"What is {n} + 1?"}, "gt_answer": str(n + 1)} for n in range(8)]
PROJECT = "GRPO-Train-Align-Debug"
SMALL = "-mnt 12 -mpt 300"
"""What a small model has room for."""


def rows_file(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scaled_down(tmp_path: Path, example: str, rows: list[dict], model: Path, flags: str) -> list[str]:
    """The example with these rows and this model in the place of its own: the last of a repeated flag counts."""
    places = f"-m {model} -d {rows_file(tmp_path / 'rows.jsonl', rows)} -sd {tmp_path / 'runs'}"
    return words_of(f"{example} {places} {SMALL} {flags}")


def words_of(text: str) -> list[str]:
    """As a shell splits it, lines that end in a backslash joined and comments left out."""
    return shlex.split(text.replace("\\\n", " "), comments=True)
