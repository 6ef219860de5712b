#!/usr/bin/env bash
# What is measured on a GPU, in parts, the most telling first:
#
#     bash benchmarks/gpu.sh --list
#     bash benchmarks/gpu.sh [--part N]... [--minutes M] [--quick] [--device cuda|cpu] [--workload NAME]... [--output DIR]
#
# Parts 1 to 4 fit into two calls of six minutes each, where a GPU is lent by the quarter of an hour:
#
#     bash benchmarks/gpu.sh --part 1 --part 4 --minutes 6
#     bash benchmarks/gpu.sh --part 2 --part 3 --minutes 6
#
# Without --part all parts run in order. Each measurement writes its result as soon as it has one, into --output (default
# benchmarks/results, as gpu-*.json), with its words in logs/ there, and runs under a limit of its own; one that fails is
# named in the end, and the others run. --minutes ends the call: once they are over, nothing more is started, and what was
# not is named.
#
# Needs an environment with Paceline (PYTHON, default .venv/bin/python or python3). TRL is measured where it is installed
# in the same environment (`pip install -e '.[bench]'`), vLLM in the one that VLLM_PYTHON names (default
# .venv-vllm/bin/python), and TRL with vLLM where that one has TRL too. Either may be a script that prepares an
# environment and ends with `exec python3 "$@"`. Tests run in WORKERS processes (default: half of the cores, at most 8).
# --quick tries all of it on a few tokens and writes to a temporary directory; with --device cpu --workload 30m it does so
# anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda quick=() output='' workloads=() parts=() minutes=0 list=''
while (($#)); do
  case "$1" in
    --list) list=yes; shift ;;
    --quick) quick=(--quick); shift ;;
    --part) parts+=("${2:?--part needs a number from 1 to 7}"); shift 2 ;;
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
1     3.5      kernels and graphs on the device; then the laws           tests that pass on the device
2     3        vLLM: training with it colocated; generation beside it    whether a run ends; its logprob mismatch;
               at 0.5B                                                   tokens/s over vLLM's
3     3        the step beside TRL with vLLM colocated at 0.5B           how many times as fast as TRL; both peaks
4     2.5      the update alone at 1.5B by what saves memory             seconds; MFU; peak memory beside the plan's
5     5        rates of the machine; phases and profile of a step at     decoded bytes over the bandwidth; share of the wall
               0.5B; generation beside vLLM at 1.5B and 7B, at 7B with   clock in which the GPU computes; tokens/s over vLLM's
               layers in eight bits too
6     8        vLLM compiled, with an adapter, with newer weights while  logprob mismatch; tests that pass on the device;
               it samples; its tests; the step at 1.5B and with TRL's    how many times as fast as TRL; peaks at 7B
               own generation; the update at 7B
7     8        the real model on GSM8K; bfloat16, float32 and fp8;       accuracy over steps; logprob mismatch by precision;
               completions of up to 32,000 tokens; a run with and        whether a step of these ends; what surviving costs
               without checkpoints
Minutes are planned for one H100 with everything installed.
LIST
  exit 0
fi
((${#parts[@]})) || parts=(1 2 3 4 5 6 7)
for part in "${parts[@]}"; do
  [[ $part =~ ^[1-7]$ ]] || { echo "--part must be a number from 1 to 7, got $part" >&2; exit 2; }
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
export PYTHONFAULTHANDLER=1
measure() {  # seconds of its limit, name, command; tests end by Ctrl-C with their summary, others with every thread's stack
  local limit=$1 name=$2 began=$SECONDS status=0
  shift 2
  if ((ended)); then
    ((SECONDS + 15 < ended)) || { failed+=("$name: not started, the minutes were over"); return 0; }
    ((limit <= ended - SECONDS)) || limit=$((ended - SECONDS))
  fi
  echo "== $name"
  local signal=ABRT
  [[ " $* " != *" pytest "* ]] || signal=INT
  timeout --signal "$signal" --kill-after 10 "$limit" "$@" 2>&1 | tee "$output/logs/${name//[^a-zA-Z0-9.]/-}.log" |
    tail -n 40 || status=$?
  echo "== $name: $((SECONDS - began)) s, status $status"
  ((status != 124)) || name="$name, after its limit of $limit s"
  ((status == 0)) || failed+=("$name: status $status")
}
on_workloads() { printf '%s\n' "${workloads[@]:-$@}"; }
train() {  # name, python, options: a short run, and what its metrics say
  local name=$1 with=$2 place=$output/runs/${1//[^a-zA-Z0-9.]/-}
  shift 2
  rm -rf "$place"
  measure 180 "train $name" "$with" -m paceline train --device "$device" --output-dir "$place" "$@"
}

rates="$output/gpu-machine.json"
[[ $device == cuda ]] || rates="$output/machine.json"
generate=("$python" benchmarks/bench_generate.py --device "$device" --vllm-python "$vllm_python" --output "$output")
step=("$python" benchmarks/bench_step.py --device "$device" --vllm-python "$vllm_python" --output "$output")

workers=${WORKERS:-$(( $(nproc) / 2 > 8 ? 8 : ($(nproc) + 1) / 2 ))}
several=()
! "$python" -c 'import xdist' 2>/dev/null || several=(--numprocesses "$workers" --dist worksteal)
tests=("$python" -m pytest -q -p no:cacheprovider "${several[@]}")
vllm_task=(--model embedded --dataset arithmetic --max-steps 5 --eval-size 64 --engine vllm --vllm-memory 0.3)
[[ $device == cuda ]] || vllm_task+=(--vllm-memory 0.1GiB --max-prompt-length 64 --concurrent-sequences 64)
((!${#quick[@]})) || vllm_task+=(--max-steps 2 --eval-size 8 --prompts-per-step 4)
has_vllm() {
  "$vllm_python" -c 'import vllm' >/dev/null 2>&1 || { failed+=("vLLM: $vllm_python cannot import it"); return 1; }
}
with_vllm() {  # name, options: a run that samples with vLLM, and its mismatch
  local name=$1
  shift
  train "vllm $name" "$vllm_python" "${vllm_task[@]}" "$@"
  measure 30 "mismatch of vllm $name" "$python" benchmarks/vllm_mismatch.py "$output/runs/vllm-${name// /-}" \
    --device "$device" --python "$vllm_python" --output "$output"
}

part_1() {
  if [[ $device == cuda ]]; then
    measure 100 "kernels and graphs" "${tests[@]}" tests/unit/kernels/test_on_cuda.py tests/unit/kernels/test_cuda_*.py
  fi
  # laws of several ranks and of Ray are of processors: there is one GPU
  ((${#quick[@]})) || measure 115 "the laws" env PACELINE_TEST_DEVICE="$device" "${tests[@]}" tests/laws \
    --ignore-glob '*_layouts.py' --ignore tests/laws/test_law_10_same_run.py
}
part_2() {
  has_vllm || return 0
  with_vllm eager --vllm-eager true
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 200 "generation, $workload" "${generate[@]}" --workload "$workload" --contender paceline --contender vllm \
      --repetitions 2 "${quick[@]}"
  done
}
part_3() {
  has_vllm || return 0
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 240 "step beside TRL with vLLM, $workload" "${step[@]}" --workload "$workload" \
      --contender paceline --contender trl-vllm-bfloat16-8-checkpointing --repetitions 2 "${quick[@]}"
  done
}
part_4() {
  local sizes=(--size qwen-1.5b)
  [[ $device == cuda ]] || sizes=(--size 30m)
  measure 200 "the update" "$python" benchmarks/bench_update.py --device "$device" "${sizes[@]}" "${quick[@]}" \
    --output "$output"
}
part_5() {
  measure 90 "rates of the machine" "$python" benchmarks/machine.py --device "$device" --output "$rates"
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 200 "phases and profile, $workload" "$python" benchmarks/phases.py --device "$device" --profile \
      --workload "$workload" --machine "$rates" --repetitions 1 "${quick[@]}" --output "$output"
  done
  for workload in $(on_workloads qwen-1.5b-long qwen-7b-long); do
    measure 300 "generation, $workload" "${generate[@]}" --workload "$workload" --contender paceline --contender vllm \
      --repetitions 2 "${quick[@]}"
  done
}
part_6() {
  if has_vllm; then
    with_vllm adapter --vllm-eager true --lora-rank 8 --learning-rate 1e-3
    with_vllm compiled --vllm-eager auto
    if "$vllm_python" -c 'import ray' >/dev/null 2>&1; then
      with_vllm "newer weights" --vllm-eager true --cluster --max-staleness 1 --on-new-weights continue
    else
      echo "== train vllm newer weights: Ray is not installed; the tests of vLLM change weights between two tokens too"
    fi
    # one process: each test of vLLM starts an engine
    measure 240 "tests of vLLM" env PACELINE_TEST_DEVICE="$device" "$vllm_python" -m pytest -q -p no:cacheprovider \
      tests/unit/engines/test_engine_vllm.py tests/integration/test_vllm.py
    for workload in $(on_workloads qwen-1.5b-long); do
      measure 240 "step beside TRL with vLLM, $workload" "${step[@]}" --workload "$workload" --contender paceline \
        --contender trl-vllm --repetitions 2 "${quick[@]}"
    done
  fi
  # in a directory of its own: a result file holds all contenders of a workload
  for workload in $(on_workloads qwen-0.5b-long); do
    measure 280 "step beside TRL's own generation, $workload" "${step[@]}" --workload "$workload" \
      --contender paceline --contender trl-generate --repetitions 1 "${quick[@]}" --output "$output/own"
  done
  [[ $device != cuda ]] || measure 420 "the update at 7B" "$python" benchmarks/bench_update.py --device cuda \
    --size qwen-7b "${quick[@]}" --output "$output"
}
part_7() {
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

[[ $minutes == 0 ]] || ended=$((SECONDS + $("$python" -c "print(round(60 * float('$minutes')))")))
for part in "${parts[@]}"; do
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
