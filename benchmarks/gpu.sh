#!/usr/bin/env bash
# What is measured on a GPU, in six parts, each of minutes:
#
#     bash benchmarks/gpu.sh --list
#     bash benchmarks/gpu.sh [--part N]... [--minutes M] [--quick] [--device cuda|cpu] [--workload NAME]... [--output DIR]
#
# Without --part all parts run, in the order of what they say. Each measurement writes its result as soon as it has one,
# into --output (default benchmarks/results, as gpu-*.json), with its words in logs/ there, and runs under a limit of its
# own; one that fails is named in the end, and the others run. --minutes ends each part: once they are over, nothing more
# of it is started, and what was not is named.
#
# Needs an environment with Paceline (PYTHON, default .venv/bin/python or python3). TRL is measured where it is installed
# in the same environment (`pip install -e '.[bench]'`), vLLM in the one that VLLM_PYTHON names (default
# .venv-vllm/bin/python), and TRL with vLLM where that one has TRL too. Either may be a script that prepares an
# environment and ends with `exec python3 "$@"`. --quick tries all of it on a few tokens and writes to a temporary
# directory; with --device cpu --workload 30m it does so anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda quick=() output='' workloads=() parts=() minutes=0 list=''
while (($#)); do
  case "$1" in
    --list) list=yes; shift ;;
    --quick) quick=(--quick); shift ;;
    --part) parts+=("${2:?--part needs a number from 1 to 6}"); shift 2 ;;
    --minutes) minutes=${2:?--minutes needs a number}; shift 2 ;;
    --device) device=${2:?--device needs cuda or cpu}; shift 2 ;;
    --workload) workloads+=("${2:?--workload needs a name}"); shift 2 ;;
    --output) output=${2:?--output needs a directory}; shift 2 ;;
    *) echo "unknown argument $1; known: --list, --part N, --minutes M, --quick, --device cuda|cpu, --workload NAME," \
      "--output DIR" >&2; exit 2 ;;
  esac
done
if [[ -n $list ]]; then
  cat <<'LIST'
part  minutes  what                                                      the figure it gives
1     4        rates of the machine; kernels and graphs on the device;   decoded bytes over the bandwidth; share of the wall
               phases and profile of a step at 0.5B; then the laws       clock in which the GPU computes; decoding by rows
2     5        plain generation beside vLLM at 0.5B, 1.5B and 7B,        tokens/s over vLLM's; time of the slowest completion
               at 7B with layers in eight bits too
3     4        training with vLLM colocated: weights, an adapter,        whether each run ends; its logprob mismatch;
               newer weights while it samples; vLLM's tests              tests that pass on the device
4     4        the step beside TRL with vLLM colocated, weights and an   how many times as fast as TRL; both peaks
               adapter, 0.5B and 1.5B; then with its own generation
5     4        the update alone at 1.5B and 7B by what saves memory      MFU; peak memory beside the plan's
6     4        the real model on GSM8K; bfloat16, float32 and fp8;       accuracy over steps; logprob mismatch by precision;
               completions of up to 32,000 tokens; then a run with       whether a step of these ends; what surviving costs
               and without checkpoints
Minutes, 25 in all, are planned for one H100 with everything installed, without what stands behind "then".
LIST
  exit 0
fi
((${#parts[@]})) || parts=(1 2 3 4 5 6)
for part in "${parts[@]}"; do
  [[ $part =~ ^[1-6]$ ]] || { echo "--part must be a number from 1 to 6, got $part" >&2; exit 2; }
done
if [[ -z $output ]]; then
  if ((${#quick[@]})); then output=$(mktemp -d); else output=benchmarks/results; fi
fi
mkdir -p "$output/logs"

if [[ -n ${PYTHON:-} ]]; then python=$PYTHON
elif [[ -x .venv/bin/python ]]; then python=.venv/bin/python
else python=python3; fi
vllm_python=${VLLM_PYTHON:-.venv-vllm/bin/python}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}

"$python" - "$device" <<'CHECK'
import sys
import torch
import paceline
if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    sys.exit("torch finds no CUDA device; install a CUDA build of torch, or try the script with --device cpu --quick")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if sys.argv[1] == 'cuda' else 'CPU'}")
CHECK

failed=() ended=0
measure() {  # seconds of its limit, name, command
  local limit=$1 name=$2 began=$SECONDS status=0
  shift 2
  if ((ended)); then
    ((SECONDS < ended)) || { failed+=("$name: not started, the part's minutes were over"); return 0; }
    ((limit <= ended - SECONDS)) || limit=$((ended - SECONDS))
  fi
  echo "== $name"
  timeout --kill-after 10 "$limit" "$@" 2>&1 | tee "$output/logs/${name//[^a-zA-Z0-9.]/-}.log" | tail -n 40 || status=$?
  echo "== $name: $((SECONDS - began)) s, status $status"
  ((status == 0)) || failed+=("$name: status $status$([[ $status == 124 ]] && echo " after its limit of $limit s")")
}
on_workloads() { printf '%s\n' "${workloads[@]:-$@}"; }
train() {  # name, python, options: a short run, and what its metrics say
  local name=$1 with=$2 place=$output/runs/${1//[^a-zA-Z0-9.]/-}
  shift 2
  rm -rf "$place"
  measure 150 "train $name" "$with" -m paceline train --device "$device" --output-dir "$place" "$@"
}

rates="$output/gpu-machine.json"
[[ $device == cuda ]] || rates="$output/machine.json"
generate=("$python" benchmarks/bench_generate.py --device "$device" --vllm-python "$vllm_python" --output "$output")
step=("$python" benchmarks/bench_step.py --device "$device" --vllm-python "$vllm_python" --output "$output")

part_1() {
  measure 90 "rates of the machine" "$python" benchmarks/machine.py --device "$device" --output "$rates"
  if [[ $device == cuda ]]; then
    measure 120 "kernels and graphs" "$python" -m pytest -q -p no:cacheprovider tests/unit/kernels/test_on_cuda.py \
      tests/unit/kernels/test_cuda_*.py
  fi
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 200 "phases and profile, $workload" "$python" benchmarks/phases.py --device "$device" --profile \
      --workload "$workload" --machine "$rates" --repetitions 1 "${quick[@]}" --output "$output"
  done
  # laws of several ranks and of Ray are of processors: there is one GPU
  ((${#quick[@]})) || measure 600 "the laws" env PACELINE_TEST_DEVICE="$device" "$python" -m pytest -q \
    -p no:cacheprovider tests/laws --ignore-glob '*_layouts.py' --ignore tests/laws/test_law_10_same_run.py
}
part_2() {
  for workload in $(on_workloads qwen-0.5b-long qwen-1.5b-long qwen-7b-long); do
    measure 300 "generation, $workload" "${generate[@]}" --workload "$workload" --contender paceline --contender vllm \
      --repetitions 2 "${quick[@]}"
  done
}
part_3() {
  if ! "$vllm_python" -c 'import vllm' >/dev/null 2>&1; then
    failed+=("vLLM: $vllm_python cannot import it"); return 0
  fi
  local task=(--model embedded --dataset arithmetic --max-steps 5 --eval-size 64 --engine vllm --vllm-memory 0.3)
  [[ $device == cuda ]] || task+=(--vllm-memory 0.1GiB --max-prompt-length 64 --concurrent-sequences 64)
  ((!${#quick[@]})) || task+=(--max-steps 2 --eval-size 8 --prompts-per-step 4)
  train "vllm eager" "$vllm_python" "${task[@]}" --vllm-eager true
  train "vllm compiled" "$vllm_python" "${task[@]}" --vllm-eager auto
  train "vllm adapter" "$vllm_python" "${task[@]}" --vllm-eager true --lora-rank 8 --learning-rate 1e-3
  if "$vllm_python" -c 'import ray' >/dev/null 2>&1; then
    train "vllm newer weights" "$vllm_python" "${task[@]}" --vllm-eager true --cluster --max-staleness 1 \
      --on-new-weights continue
  else
    echo "== train vllm newer weights: Ray is not installed; the tests of vLLM change weights between two tokens too"
  fi
  measure 240 "tests of vLLM" env PACELINE_TEST_DEVICE="$device" "$vllm_python" -m pytest -q -p no:cacheprovider \
    tests/unit/engines/test_engine_vllm.py tests/integration/test_vllm.py
}
part_4() {
  for workload in $(on_workloads qwen-0.5b-long qwen-1.5b-long); do
    measure 240 "step beside TRL with vLLM, $workload" "${step[@]}" --workload "$workload" --contender paceline \
      --contender trl-vllm --repetitions 2 "${quick[@]}"
  done
  # in a directory of its own: a result file holds all contenders of a workload
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 280 "step beside TRL's own generation, $workload" "${step[@]}" --workload "$workload" \
      --contender paceline --contender trl-generate --repetitions 1 "${quick[@]}" --output "$output/own"
  done
}
part_5() {
  local sizes=(--size qwen-1.5b --size qwen-7b)
  [[ $device == cuda ]] || sizes=(--size 30m)
  measure 420 "the update" "$python" benchmarks/bench_update.py --device "$device" "${sizes[@]}" "${quick[@]}" \
    --output "$output"
}
part_6() {
  local model=${SMOLLM2:-runs/real/SmolLM2-135M-Instruct.Q4_1.gguf} data=${GSM8K:-openai/gsm8k}
  local words=(--num-generations 8 --prompts-per-step 16 --max-completion-length 256 --learning-rate 5e-6 --eval-size 128)
  if ((${#quick[@]})) || [[ ! -e $model ]]; then
    [[ -e $model ]] || echo "no file $model: the embedded model stands in for it"
    model=embedded data=arithmetic words=(--max-steps 2 --eval-size 8 --prompts-per-step 4)
  fi
  for precision in bfloat16 float32 fp8; do
    local own=("${words[@]}") named=(--dtype "$precision")
    [[ $precision != fp8 ]] || named=(--dtype bfloat16 --engine-quantization fp8)
    ((${#quick[@]})) || own+=(--max-steps 20 --eval-steps 0)
    train "precision $precision" "$python" --model "$model" --dataset "$data" "${own[@]}" "${named[@]}"
  done
  ((${#quick[@]})) || words+=(--max-steps 300 --eval-steps 50)
  train "real model" "$python" --model "$model" --dataset "$data" "${words[@]}"
  for workload in $(on_workloads qwen-0.5b-32k); do
    measure 240 "long completions, $workload" "${step[@]}" --workload "$workload" --contender paceline \
      --output "$output/long" "${quick[@]}"
  done
  if [[ ${#quick[@]} -eq 0 && $device == cuda ]]; then
    measure 600 "what surviving costs" "$python" benchmarks/bench_survival.py --workload qwen-0.5b --row background \
      --steps 50 --turn 10 --repetitions 1
  fi
}

for part in "${parts[@]}"; do
  ended=0
  [[ $minutes == 0 ]] || ended=$((SECONDS + $("$python" -c "print(round(60 * float('$minutes')))")))
  echo "==== part $part"
  began=$SECONDS
  "part_$part"
  echo "==== part $part: $((SECONDS - began)) s"
done
if [[ ${#quick[@]} -eq 0 && $output == benchmarks/results ]]; then
  measure 60 "the page" "$python" benchmarks/table.py
fi

echo "results: $output"
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
