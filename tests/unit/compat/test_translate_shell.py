"""Shell scripts with a training command: what is read of them, and what only a shell could know."""

import pytest

from paceline.compat.commands.command import translate
from paceline.compat.commands.shell import read_shell
from paceline.compat.commands.translation import Translation
from paceline.errors import ConfigError

SCRIPT = r"""#!/bin/bash
# NPROC_PER_NODE=8 swift rlhf --rlhf_type sft
set -euo pipefail
cd "$(dirname "$0")"
MODEL="${1:-Qwen/Qwen2.5-1.5B}"   # the first argument
GPUS=4; STEPS=$((GPUS * 5))
export NPROC_PER_NODE=$GPUS WANDB_PROJECT='my runs'
REWARDS=(accuracy
    format)  # two of them
REWARDS+=("plugin.py:mine")
if [ -n "${DEBUG:-}" ]; then
    pip install ms-swift > /dev/null 2>&1
fi
CUDA_VISIBLE_DEVICES=0,1,2,3 \
swift rlhf \
    --rlhf_type grpo \
    --model "$MODEL" \
    --dataset 'rows with spaces.jsonl' \
    --reward_funcs "${REWARDS[@]}" \
    --max_steps ${STEPS} \
    --output_dir "${OUT-runs/mine}" \
    --per_device_train_batch_size 2 2>&1 | tee train.log
python -m http.server &
"""


TRL = "trl grpo --model_name_or_path M --dataset_name rows.jsonl --reward_funcs accuracy_reward"


def translated(script: str, *arguments: str, command: tuple[str, ...] = ("bash",), **environment: str) -> Translation:
    def read(path: str) -> str:
        assert path == "grpo.sh"
        return script

    return translate([*command, "grpo.sh", *arguments], read=read, environment=environment)


@pytest.mark.parametrize("command", [("bash",), ("/bin/sh", "-e"), ()])
def test_a_script_is_its_training_command_with_its_variables(command):
    found = translated(SCRIPT, command=command)
    plain = "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B --reward_funcs accuracy format plugin.py:mine"
    more = "--max_steps 20 --output_dir runs/mine --per_device_train_batch_size 2"
    variables = ["NPROC_PER_NODE=4", "WANDB_PROJECT=my runs", "CUDA_VISIBLE_DEVICES=0,1,2,3"]
    same = translate([*variables, *plain.split(), "--dataset", "rows with spaces.jsonl", *more.split()])
    assert found.options == same.options
    assert found.launch == same.launch == ("--nproc-per-node", "4")
    assert found.environment == same.environment
    others = {note.about for note in found.notes if note.about.startswith("grpo.sh")}
    lines = ('4: cd $(dirname "$0")', "12: pip install", "23: python -m")
    assert others == {f"grpo.sh, line {line}" for line in lines}


def test_arguments_and_exported_variables_come_into_the_script():
    assert translated(SCRIPT, "a/b").options["model"] == "a/b"
    assert translated(SCRIPT, OUT="elsewhere").options["output_dir"] == "elsewhere"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("swift rlhf --rlhf_type grpo --model $MODEL", "grpo.sh, line 1: the value of $MODEL is not in the script"),
        ("X=$(nproc)\n\nswift rlhf --num_generations $X", r"line 3: the value of \$\(nproc\) is not in the script"),
        ("for M in a b; do swift rlhf --model $M; done", r"the value of \$M is not in the script"),
        ("echo hello", "grpo.sh must have one command that trains, got none"),
        ("swift rlhf --x\ntrl grpo --y", "one command that trains, got line 1 swift rlhf, line 2 trl grpo"),
    ],
)
def test_what_the_script_alone_does_not_say_is_refused(script, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("$MODEL", r"\$MODEL")):
        translated(script)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (r"run a\ b 'c d' \"e\"", ["run", "a b", "c d", '"e"']),
        ('run "${A[@]}" ${A[*]} $A', ["run"]),  # an array that is nowhere set has one unknown value
        ('A=()\nrun "${A[@]}" end', ["run", "end"]),
        ("A='x y'\nrun $A \"$A\" ${A}z", ["run", "x", "y", "x y", "x", "yz"]),
        ("run < in > out 2>&1 >> log more", ["run", "more"]),
        ("run <<EOF\n--model secret\nEOF\n", ["run"]),
        ("run --x '' \"\" $'tab'", ["run", "--x", "", "", "$tab"]),
        ("B=${B:=8}; run $B; ", ["run", "8"]),
        ("run a#b #c", ["run", "a#b"]),
        ("run \\\r\n  --x 1\r\n", ["run", "--x", "1"]),
    ],
)
def test_words_are_those_of_a_shell(script, words):
    (command,) = read_shell(script, arguments=(), environment={})
    assert [word for word in command.words if "\0" not in word] == words


@pytest.mark.parametrize(
    "text", ['"', "'", "$(", "${", "A=(", "<<E", "$", "\\", "run >", "`a", "((", ")", "${A[", "\0"]
)
def test_a_script_that_is_torn_ends_all_the_same(text):
    read_shell(text, arguments=(), environment={})
    read_shell(f"run {text}", arguments=(), environment={})


ADDS = 'A+=(--output_dir "$RESUME")'


@pytest.mark.parametrize(
    "branch",
    [
        f'if [[ -n "${{RESUME:-}}" ]]; then {ADDS}; fi',
        f'if [ -z "${{RESUME:-}}" ]; then\n  A+=(--seed 5)\nelse\n  {ADDS}\nfi',
        f"if [[ -n ${{RESUME:-}} ]]\nthen\n  {ADDS}\nelif [[ 2 -gt 1 ]]; then\n  A+=(--seed 5)\nfi",
        f'[[ -n "${{RESUME:-}}" ]] && {ADDS}',
        f'[ -z "${{RESUME:-}}" ] || {ADDS}',
        f'if ! [[ -z "${{RESUME:-}}" ]]; then if true; then {ADDS}; fi; fi',
    ],
)
def test_a_branch_that_does_not_run_is_not_read(branch):
    script = f'A=(--max_steps 2)\n{branch}\n{TRL} "${{A[@]}}"\n'
    assert "output_dir" not in translated(script).options
    assert translated(script).options.get("seed") == (5 if "--seed" in branch else None)
    assert translated(script, RESUME="there").options["output_dir"] == "there"


def test_a_branch_whose_test_only_a_shell_knows_is_read():
    for test in ("[ -f x ]", '[[ "$OTHER" == a* ]]', '[[ -n "${A:-}" ]] && [ -d y ]', "grep -q x y"):
        script = f"S=1; A=a\nif {test}; then S=5; else T=1; fi\n{TRL} --seed $S\n"
        assert translated(script).options["seed"] == 5


def test_a_training_in_a_branch_that_does_not_run_is_not_the_one():
    script = f"if [ a = b ]; then\n{TRL} --seed 5\nelse\nsrun {TRL} --seed 6\nfi\n"
    assert translated(script).options["seed"] == 6
