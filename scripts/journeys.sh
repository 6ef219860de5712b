#!/usr/bin/env bash
# The journeys of users, command by command: a newcomer, data of one's own, an operator, a user of TRL. Every command's
# output, exit status and seconds are kept for a reader; nothing is judged here but the exit status that is expected.
#
#   scripts/journeys.sh OUT          in a fresh environment: an installation of this source, with PYTHON and TORCH
#   scripts/journeys.sh OUT VENV     with an environment in which Paceline is installed
set -euo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: scripts/journeys.sh OUT [VENV]" >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
place=$(mktemp -d -t paceline-journeys-XXXXXX)
trap 'rm -rf "$place"' EXIT
if [ $# -eq 2 ]; then
  venv=$(cd "$2" && pwd)
else
  venv=$place/venv
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "${TORCH:-torch==2.13.0}"
  mkdir "$place/source" # a copy, as building leaves files among the sources
  cp -r "$source"/{pyproject.toml,README.md,LICENSE,src,constraints.txt} "$place/source"
  "$venv/bin/python" -m pip install --quiet -c "$place/source/constraints.txt" "$place/source"
fi
export PATH="$venv/bin:$PATH" HF_HUB_OFFLINE=1
unexpected=0
: >"$out/journeys.tsv"

# journey NAME STATUS COMMAND...: keeps NAME.txt, and a line with name, status and seconds.
journey() {
  local name=$1 expected=$2 status=0 started
  shift 2
  started=$(date +%s%N)
  { printf '$ %s\n' "$*"; "$@" </dev/null; } >"$out/$name.txt" 2>&1 || status=$?
  printf '%s\t%s\t%.1f\n' "$name" "$status" "$(awk "BEGIN { print ($(date +%s%N) - $started) / 1e9 }")" |
    tee -a "$out/journeys.tsv"
  if [ "$status" -ne "$expected" ]; then
    echo "journeys: $name ended with $status, expected $expected: $out/$name.txt" >&2
    unexpected=1
  fi
}

# A run that is interrupted after its first step.
interrupted() {
  paceline train --output-dir runs/first &
  local run=$!
  until [ -s runs/first/metrics.jsonl ]; do
    kill -0 "$run" 2>/dev/null || break
    sleep 0.2
  done
  kill -TERM "$run"
  wait "$run"
}

cd "$place"
python - <<'ROWS'
import json

def write(name, rows):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

rows = [{"q": f"What is {a} + {b}?", "a": a + b} for a in range(10) for b in range(20)]
write("mine.jsonl", rows)
write("twice.jsonl", rows[:100] * 2)
write("empty.jsonl", [{**row, "a": ""} if n % 2 else row for n, row in enumerate(rows)])
write("long.jsonl", [*rows[:20], {"q": "What is 1 + 1? " * 500, "a": 2}])
with open("typo.jsonl", "w") as file:
    file.write('{"q": "1 + 1?", "a": 2}\n{"q": "2 + 2?", "a": 4\n')
with open("rows.csv", "w") as file:
    file.write("question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(40)))
with open("rewards.py", "w") as file:
    file.write(
        "import re\n\n\ndef partial(completions, answer, **columns):\n"
        '    """Nearer numbers earn more."""\n'
        "    found = [re.findall(r'-?\\d+', text) for text in completions]\n"
        "    return [0.0 if not one else 1 / (1 + abs(int(one[-1][:9]) - int(gold))) for one, gold in zip(found, answer)]\n"
    )
with open("trl_script.py", "w") as file:
    file.write(
        "from paceline import GRPOConfig, GRPOTrainer\n\n\n"
        "def brief(completions, **columns):\n    return [-len(text) / 100 for text in completions]\n\n\n"
        "rows = [{'prompt': f'What is {n} + 1?'} for n in range(32)]\n"
        "args = GRPOConfig(output_dir='runs/trl', max_steps=2, per_device_train_batch_size=8, num_generations=4,\n"
        "                  max_completion_length=16, model_init_kwargs={'revision': 'main'}, report_to=[])\n"
        "GRPOTrainer('MODEL', brief, args, train_dataset=rows).train()\n"
    )
ROWS

# a newcomer
journey newcomer-help 0 paceline
journey newcomer-doctor 0 paceline doctor
journey newcomer-plan 0 paceline plan
journey newcomer-explain 0 paceline explain
journey newcomer-stopped 130 interrupted
journey newcomer-resumed 0 paceline train --resume runs/first
journey newcomer-report 0 paceline report runs/first
journey newcomer-replay 0 paceline replay runs/first --step 3
journey newcomer-eval-run 0 paceline eval runs/first
journey newcomer-eval-final 0 paceline eval --model runs/first/final --dataset arithmetic --eval-size 50
journey newcomer-export 2 paceline export runs/first
(cd runs/first/final && python -c "import re; print(re.search(r'\`\`\`python\n(.*?)\`\`\`', open('README.md').read(), re.S)[1])") >card.py
journey newcomer-card 0 bash -c 'cd runs/first/final && python ../../../card.py'

# data and rewards of one's own
short=(--model embedded --prompt-column q --answer-column a --max-steps 2 --prompts-per-step 4 --max-completion-length 64)
journey data-mine 0 paceline train --dataset mine.jsonl --eval-share 0.1 --reward-funcs rewards.py:partial accuracy \
  --output-dir runs/mine "${short[@]}"
journey data-overlap 2 paceline train --dataset mine.jsonl --eval-dataset mine.jsonl "${short[@]}"
journey data-overlap-plan 2 paceline plan --dataset mine.jsonl --eval-dataset mine.jsonl "${short[@]}"
journey data-twice 0 paceline plan --dataset twice.jsonl "${short[@]}"
journey data-empty 0 paceline plan --dataset empty.jsonl "${short[@]}"
journey data-long 2 paceline train --dataset long.jsonl "${short[@]}"
journey data-long-plan 2 paceline plan --dataset long.jsonl "${short[@]}"
journey data-typo 2 paceline plan --dataset typo.jsonl "${short[@]}"
journey data-csv 0 paceline plan --model embedded --dataset rows.csv
journey data-url 2 paceline plan --model embedded --dataset https://example.com/rows.jsonl
journey data-audit 1 paceline audit --reward-funcs rewards.py:partial

# an operator
journey operator-json 0 paceline train --output-dir runs/json --max-steps 2 --eval-size 10 --warmup-steps 0 --log-format json
journey operator-quiet 0 paceline train --output-dir runs/quiet --max-steps 2 --eval-size 10 --warmup-steps 0 --quiet
journey operator-unknown 2 paceline train --max-stepz 3
journey operator-again 2 paceline train --output-dir runs/json --max-steps 2

# a user of TRL
base=$(python -c "from paceline.models.places import model_place; print(model_place('embedded').base)")
sed -i "s|MODEL|$base|" trl_script.py
journey trl-script 0 python trl_script.py
journey trl-translate 2 paceline translate -- accelerate launch trl_script.py --model_name_or_path "$base"

cp trl_script.py rewards.py "$out"
exit "$unexpected"
