#!/usr/bin/env bash
# The journeys of users, command by command: a newcomer, data and rewards of one's own, a real model, a user of TRL, a
# researcher, an operator, a reader of the docs. Every command's output, exit status and seconds are kept for a reader;
# nothing is judged here but the exit status.
#
#   scripts/journeys.sh OUT          in a fresh environment: an installation of this source, with PYTHON and TORCH
#   scripts/journeys.sh OUT VENV     with an environment in which Paceline is installed, with the extra gguf
#
# REAL names a model for the third journey, by default the file that `make real` gets; without it that journey is left out.
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
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${TORCH:-torch==2.13.0}"
  mkdir "$place/source" # a copy, as building leaves files among the sources
  cp -r "$source"/{pyproject.toml,README.md,LICENSE,src,constraints.txt} "$place/source"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$place/source/constraints.txt" \
    "$place/source[gguf]"
fi
export PATH="$venv/bin:$PATH" HF_HUB_OFFLINE=1
base=$(python -c "from paceline.models.places import model_place; print(model_place('embedded').base)")
unexpected=0
: >"$out/journeys.tsv"

# journey NAME STATUS COMMAND...: keeps NAME.txt without the paths of this machine, and a line with name, status, seconds.
# The command is shown as $shown where that is set.
journey() {
  local name=$1 expected=$2 status=0 started
  shift 2
  started=$(date +%s%N)
  { printf '$ %s\n' "${shown:-$*}"; "$@" </dev/null; } >"$place/said" 2>&1 || status=$?
  sed -e 's/\x1b\[[0-9;?]*[a-zA-Z]//g' -e 's/\r$//' -e 's/.*\r//' -e "s|$base|EMBEDDED|g" -e "s|$venv|.venv|g" -e "s|$place/||g" \
    -e "s|$place|.|g" -e "s|$HOME|~|g" "$place/said" >"$out/$name.txt"
  printf '%s\t%s\t%.1f\n' "$name" "$status" "$(awk "BEGIN { print ($(date +%s%N) - $started) / 1e9 }")" |
    tee -a "$out/journeys.tsv"
  if [ "$status" -ne "$expected" ]; then
    echo "journeys: $name ended with $status, expected $expected: $out/$name.txt" >&2
    unexpected=1
  fi
}

# ended SIGNAL RUN OPTION...: a run that gets the signal after its first step.
ended() {
  local signal=$1 directory=$2
  shift 2
  paceline train --output-dir "$directory" "$@" &
  local run=$!
  until [ -s "$directory/metrics.jsonl" ]; do
    kill -0 "$run" 2>/dev/null || break
    sleep 0.1
  done
  kill "-$signal" "$run"
  { wait "$run"; } 2>/dev/null # bash says of a process that was killed which line started it
}

cd "$place"
cp -r "$source/examples" "$source/docs/extending.md" "$source/docs/index.md" .
python - <<'ROWS'
import json

def write(name, rows):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

rows = [{"q": f"What is {a} + {b}?", "a": a + b} for a in range(10) for b in range(20)]
write("mine.jsonl", rows)
write("twice.jsonl", [*rows[:100] * 2, {"q": "What is 0 + 0?", "a": 1}])
write("empty.jsonl", [{**row, "a": ""} if n % 2 else row for n, row in enumerate(rows)])
write("long.jsonl", [*rows[:20], {"q": "What is 1 + 1? " * 500, "a": 2}])
with open("typo.jsonl", "w") as file:
    file.write('{"q": "1 + 1?", "a": 2}\n{"q": "2 + 2?", "a": 4\n')
with open("rows.csv", "w") as file:
    file.write("question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(40)))
open("rows.xlsx", "w").close()
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
shown='paceline train --output-dir runs/first   # SIGTERM, as of a scheduler or Ctrl-C, after the first step' \
  journey newcomer-stopped 130 ended TERM runs/first
journey newcomer-resumed 0 paceline train --resume runs/first
journey newcomer-report 0 paceline report runs/first
journey newcomer-replay 0 paceline replay runs/first --step 3
journey newcomer-eval-run 0 paceline eval runs/first
journey newcomer-eval-final 0 paceline eval --model runs/first/final --dataset arithmetic --eval-size 50
journey newcomer-export 2 paceline export runs/first
(cd runs/first/final && python -c "import re; print(re.search(r'\`\`\`python\n(.*?)\`\`\`', open('README.md').read(), re.S)[1])") >card.py
shown='cat card.py; python card.py   # the program of the card in runs/first/final' \
  journey newcomer-card 0 bash -c 'cat card.py; cd runs/first/final && python ../../../card.py'
journey newcomer-files 0 find runs/first/final runs/first/evals runs/first/report.html -type f -printf '%M %p\n'
shown='paceline train --max-steps 3 --eval-size 50 --output-dir runs/screen   # in a terminal of 80 columns and 24 lines' \
  journey newcomer-terminal 0 script -qec 'stty cols 80 rows 24; paceline train --max-steps 3 --eval-size 50 \
  --output-dir runs/screen' /dev/null

# data and rewards of one's own
short=(--model embedded --prompt-column q --answer-column a --max-steps 2 --prompts-per-step 4 --max-completion-length 64)
journey data-mine 0 paceline train --dataset mine.jsonl --eval-share 0.1 --reward-funcs rewards.py:partial accuracy \
  --output-dir runs/mine "${short[@]}"
journey data-signal 0 paceline train --dataset mine.jsonl --eval-share 0.1 --output-dir runs/signal "${short[@]}"
journey data-overlap 2 paceline train --dataset mine.jsonl --eval-dataset mine.jsonl "${short[@]}"
journey data-overlap-plan 2 paceline plan --dataset mine.jsonl --eval-dataset mine.jsonl "${short[@]}"
journey data-twice 0 paceline plan --dataset twice.jsonl "${short[@]}"
journey data-empty 0 paceline plan --dataset empty.jsonl "${short[@]}"
journey data-long 2 paceline train --dataset long.jsonl "${short[@]}"
journey data-long-plan 2 paceline plan --dataset long.jsonl "${short[@]}"
journey data-typo 2 paceline plan --dataset typo.jsonl "${short[@]}"
journey data-csv 0 paceline plan --model embedded --dataset rows.csv
journey data-url 2 paceline plan --model embedded --dataset https://example.com/rows.jsonl
journey data-xlsx 2 paceline plan --model embedded --dataset rows.xlsx
shown='resolve("accuracy(plain=true)") of a completion that was cut, and of one that ended' \
  journey data-cut 0 python -c 'from paceline.rewards.resolving import resolve
completions = ["So he sells a total of 2"] * 2
print(resolve("accuracy(plain=true)")(prompts=["?"] * 2, completions=completions, answer=["2"] * 2, finish_reasons=["length", "stop"]))'
journey data-audit 1 paceline audit --reward-funcs rewards.py:partial

# a real model
real=${REAL:-$source/runs/real/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ -f "$real" ]; then
  mkdir -p runs/real
  ln -s "$(realpath "$real")" runs/real/SmolLM2-135M-Instruct.Q4_1.gguf
  journey real-plan 0 paceline plan --config examples/smollm2.yaml --max-steps 3
  journey real-eval 0 paceline eval --config examples/smollm2.yaml --eval-size 100 --output-dir runs/measured
  journey real-train 0 paceline train --config examples/smollm2.yaml --eval-size 100 --max-steps 3 --warmup-steps 0 \
    --output-dir runs/smollm2
else
  echo "journeys: no real model, as there is no $real; \`make real\` gets it" >&2
fi

# a user of TRL
sed -i "s|MODEL|$base|" trl_script.py
journey trl-script 0 python trl_script.py
journey trl-translate 2 paceline translate -- accelerate launch trl_script.py --model_name_or_path "$base"

# a researcher: an objective of one's own, and a loop of one's own
python - <<'FILES'
import re

for name, text in re.findall(r'```\w+ title="(objectives\.py|train\.jsonl)"\n(.*?)```', open("extending.md").read(), re.S):
    open(name, "w").write(text)
FILES
own=(--model embedded --dataset train.jsonl --system-prompt '' --bound objectives.py:careful --advantage objectives.py:above_median)
journey researcher-explain 0 paceline explain "${own[@]}"
journey researcher-train 0 paceline train "${own[@]}" --prompts-per-step 2 --num-generations 4 --max-completion-length 16 \
  --max-steps 1 --output-dir runs/careful
journey researcher-replay 0 paceline replay runs/first --step 3 --preset dr_grpo
journey researcher-loop 0 python -c 'import sys; sys.path.insert(0, "examples"); import own_loop
print(own_loop.main(max_steps=5, warmup_steps=0, eval_size=100, output_dir="runs/loop").evals[-1].accuracy)'

# an operator
tiny=(--max-steps 2 --eval-size 10 --warmup-steps 0)
journey operator-log 0 paceline train --output-dir runs/log "${tiny[@]}"
journey operator-json 0 paceline train --output-dir runs/json "${tiny[@]}" --log-format json
journey operator-quiet 0 paceline train --output-dir runs/quiet "${tiny[@]}" --quiet
journey operator-unknown 2 paceline train --max-step 3
journey operator-again 2 paceline train --output-dir runs/json "${tiny[@]}"

shown='paceline train --output-dir runs/killed --max-steps 4 ...   # kill -9 after the first step' \
  journey operator-killed 137 ended KILL runs/killed --max-steps 4 --eval-size 10 --warmup-steps 0
journey operator-killed-resumed 0 paceline train --resume runs/killed
journey operator-threads 0 python -c 'import os, paceline; print(os.environ["GOMP_SPINCOUNT"])'

# a reader, who follows the page "Start in two minutes" in an empty directory
mkdir reader
cd reader
python - <<'FILES' >commands
import re

text = open("../index.md").read()
for name, block in re.findall(r'```\w+ title="(.+?)"\n(.*?)```', text, re.S):
    open(name, "w").write(block)
lines = re.sub(r" *\\\n +", " ", text).splitlines()
for line in lines:  # what needs the Hub, and a run that this page only names, are left out
    if line.startswith("    paceline ") and "Qwen" not in line and "runs/mine" not in line:
        print(line.strip())
FILES
number=0
while read -r command; do
  number=$((number + 1))
  shown=$command journey "reader-$number" 0 bash -c "$command"
done <commands

cp "$place"/{trl_script.py,rewards.py,card.py} "$out"
exit "$unexpected"
