#!/usr/bin/env bash
# A newcomer's path, timed: a fresh environment, torch, Paceline, the embedded model trained, its report looked at. What is
# downloaded is downloaded anew. PYTHON and TORCH are those of the Makefile; KEEP=1 leaves everything where it says.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$(mktemp -d -t paceline-newcomer-XXXXXX)
if [ -z "${KEEP:-}" ]; then trap 'rm -rf "$place"' EXIT; fi
exec 3>&1
total=0

# The seconds of a stage, whose own words are shown only where it fails.
stage() {
  local name=$1 started ended
  shift
  started=$(date +%s%N)
  if ! "$@" >"$place/log" 2>&1; then
    cat "$place/log" >&2
    echo "newcomer: the stage \"$name\" failed" >&2
    exit 1
  fi
  ended=$(date +%s%N)
  total=$((total + ended - started))
  printf '%-22s %6.1f s\n' "$name" "$(awk "BEGIN { print ($ended - $started) / 1e9 }")" >&3
}

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
look() {
  "$browser" --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$place/browser" --window-size=1200,1600 \
    --virtual-time-budget=2000 --screenshot="$place/report.png" "file://$place/runs/first/report.html"
  test -s "$place/report.png"
}

# A copy, as a download has it: building leaves files among the sources.
mkdir "$place/paceline"
cp -r pyproject.toml README.md LICENSE src "$place/paceline"
pip() { "$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@"; }

stage "an environment" "${PYTHON:-python3}" -m venv "$place/venv"
stage "torch" pip "${TORCH:-torch==2.13.0}"
stage "pip install ." pip -c constraints.txt "$place/paceline"
cd "$place"
stage "paceline train" venv/bin/paceline train --output-dir runs/first
grep '^report' log
stage "paceline report" venv/bin/paceline report runs/first
if [ -n "$browser" ]; then
  stage "looked at" look
else
  echo "no Chromium here: open runs/first/report.html by hand"
fi
printf '%-22s %6.1f s\n' "in all" "$(awk "BEGIN { print $total / 1e9 }")"
if [ -n "${KEEP:-}" ]; then echo "kept in $place"; fi
