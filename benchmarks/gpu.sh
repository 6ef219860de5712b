#!/usr/bin/env bash
# Everything that is measured on a GPU, as one command:
#
#     bash benchmarks/gpu.sh [--quick] [--device cuda|cpu] [--workload NAME]...
#
# Results go to benchmarks/results/gpu-*.json, and docs/benchmarks.md shows them. Needs an environment with Paceline
# (PYTHON, default .venv/bin/python or python3). TRL and vLLM are measured where they are installed: TRL in the same
# environment (`pip install -e '.[bench]'`), vLLM in the one that VLLM_PYTHON names (default .venv-vllm/bin/python).
# --quick tries all of it on a few tokens and writes to a temporary directory; with --device cpu --workload 30m it does so
# anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda
quick=()
output=benchmarks/results
workloads=()
while (($#)); do
  case "$1" in
    --quick) quick=(--quick); output=$(mktemp -d); shift ;;
    --device) device=${2:?--device needs cuda or cpu}; shift 2 ;;
    --workload) workloads+=("${2:?--workload needs a name}"); shift 2 ;;
    *) echo "unknown argument $1; known: --quick, --device cuda|cpu, --workload NAME" >&2; exit 2 ;;
  esac
done
((${#workloads[@]})) || workloads=(qwen-0.5b-long qwen-1.5b-long)

if [[ -n ${PYTHON:-} ]]; then python=$PYTHON
elif [[ -x .venv/bin/python ]]; then python=.venv/bin/python
else python=python3; fi
vllm_python=${VLLM_PYTHON:-.venv-vllm/bin/python}

"$python" - "$device" <<'CHECK'
import sys
import torch
import paceline
if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    sys.exit("torch finds no CUDA device; install a CUDA build of torch, or try the script with --device cpu --quick")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if sys.argv[1] == 'cuda' else 'CPU'}")
CHECK

failed=()
part() {  # a part that fails is named in the end, and the others run
  echo "== $1"
  local name=$1
  shift
  "$@" || failed+=("$name")
}

part "the machine's rates" "$python" benchmarks/machine.py --device "$device" --output "$output/gpu-machine.json"
if [[ ${#quick[@]} -eq 0 ]]; then
  # laws of several ranks and of Ray are of processors: there is one GPU
  part "the laws" env PACELINE_TEST_DEVICE="$device" "$python" -m pytest -q -p no:cacheprovider tests/laws \
    --ignore-glob '*_layouts.py' --ignore tests/laws/test_law_10_same_run.py
  part "kernels and graphs" "$python" -m pytest -q -p no:cacheprovider tests/unit/kernels/test_on_cuda.py \
    tests/unit/kernels/test_cuda_logits.py
fi
for workload in "${workloads[@]}"; do
  part "phases, $workload" "$python" benchmarks/phases.py --device "$device" --workload "$workload" \
    --machine "$output/gpu-machine.json" "${quick[@]}" --output "$output"
  part "generation, $workload" "$python" benchmarks/bench_generate.py --device "$device" --workload "$workload" \
    --vllm-python "$vllm_python" "${quick[@]}" --output "$output"
  part "step, $workload" "$python" benchmarks/bench_step.py --device "$device" --workload "$workload" \
    "${quick[@]}" --output "$output"
done
if [[ ${#quick[@]} -eq 0 && $device == cuda ]]; then
  part "what surviving costs" "$python" benchmarks/bench_survival.py --workload qwen-0.5b --row background --steps 50 \
    --turn 10 --repetitions 1
fi
if [[ ${#quick[@]} -eq 0 ]]; then
  part "the page" "$python" benchmarks/table.py
fi

echo "results: $output"
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
