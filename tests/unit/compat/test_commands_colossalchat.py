"""ColossalChat's command lines: every flag has an effect or a note, and every number that clashes has a remedy."""

import dataclasses
import random
import shlex

import pytest

from paceline.cli.arguments import parse
from paceline.cli.main import main
from paceline.cli.train import COMMAND as TRAIN
from paceline.compat.commands.colossalchat.arguments import (
    FIELDS,
    LACKING,
    PLAIN,
    ZERO_BUBBLE,
    ColossalChatArguments,
    flag,
    long_flag,
)
from paceline.compat.commands.colossalchat.batches import clashes, nearest
from paceline.compat.commands.command import translate
from paceline.compat.commands.translation import as_comments, as_shell, as_words, as_yaml
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.config.layout import Sizes, layout
from paceline.errors import ConfigError
from tests.support.colossalchat_commands import BUBBLES, SEVERAL_MACHINES, SINGLE_MACHINE, words_of

SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."


OF_VLLM = ("engine", "vllm_tensor_parallel", "vllm_memory")


def translated(text, *, repair=False):
    return translate(words_of(text), repair=repair)


def config_of(text, *, repair=False):
    return build_config(translated(text, repair=repair).options)


def plain(flags=""):
    """The script's own defaults, on vLLM."""
    return f"python rl_example.py -b vllm {flags}"


def notes_of(text, kind):
    return {note.about: note.text for note in translated(text).notes if note.kind == kind}


def test_the_example_for_one_machine_is_refused_with_every_clash_and_the_nearest_numbers():
    with pytest.raises(ConfigError) as refused:
        translated(SINGLE_MACHINE)
    said = str(refused.value)
    assert "-ibs 1 of 4 producers are 4 prompts a round, which -tbs 2 of 4 groups of trainers (8 an update)" in said
    assert "-tMbs must divide -tbs 2, got 8" in said
    assert "add -ibs 2 -tMbs 2 at the end" in said


def test_the_example_for_one_machine_repaired_is_this_run():
    found = translated(SINGLE_MACHINE, repair=True)
    options = {name: value for name, value in found.options.items() if name not in OF_VLLM}
    assert options == {
        "model": "/path/to/Qwen2.5-3B/",
        "dataset": "/path/to/train_data.jsonl",
        "long_prompts": "drop",
        "system_prompt": SYSTEM,
        "reward_funcs": ("boxed",),
        "max_completion_length": 3584,
        "preset": "grpo",
        "beta": 0.01,
        "kl": "k3",
        "lr_schedule": "cosine",
        "min_lr_ratio": 0.1,
        "weight_decay": 0.01,
        "prompts_per_step": 8,
        "num_generations": 4,
        "micro_batch_tokens": 8192,
        "concurrent_sequences": 4,
        "cluster": True,
        "num_producers": 4,
        "num_consumers": 4,
        "output_dir": "model/GRPO-Train-Align-Debug",
        "project": "GRPO-Train-Align-Debug",
    }
    settled = {note.about: note.text for note in found.notes if note.kind == "settled"}
    assert settled["-tMbs"] == "given as 1, 1, 8; the last counts"
    assert settled["-ibs -tMbs"].endswith("taken as -ibs 2 -tMbs 2")
    assert "-imbs" not in settled  # twice the same


def test_the_remedy_written_at_the_end_is_the_repaired_run():
    assert config_of(f"{SINGLE_MACHINE} -ibs 2 -tMbs 2") == config_of(SINGLE_MACHINE, repair=True)


def test_the_example_for_several_machines_fits_with_the_layout_that_its_file_has_and_not_without():
    config = config_of(f"{SEVERAL_MACHINES} -tp 4 -pp 2 -zero 1")
    assert (config.loop.prompts_per_step, config.optim.num_minibatches) == (16, 4)  # 2 groups of 8 trainers, 2 each
    assert (config.sampling.num_generations, config.loop.num_epochs) == (2, 2.0)
    assert (config.cluster.num_producers, config.cluster.num_consumers) == (16, 16)
    assert layout(config.parallel, 16) == Sizes(tensor=4, pipeline=2, shard=2)
    assert config.cluster.ray_address == "10.0.0.3:6379"
    assert "-tp 4 -pp 2" in notes_of(f"{SEVERAL_MACHINES} -tp 4 -pp 2 -zero 1", "mended")
    with pytest.raises(ConfigError, match=r"16 prompts a round, .* \(32 an update\) must divide\. .* add -ibs 2 at"):
        translated(SEVERAL_MACHINES)


def test_the_zero_bubble_example_samples_ahead_by_what_its_buffer_holds():
    config = config_of(BUBBLES)
    assert config.cluster.max_staleness == 1  # 2 * 2 * 4 prompts wait, a step takes 32
    assert config_of(f"{BUBBLES} -cbsl 65").cluster.max_staleness == 3
    assert config.advantage.filter_range == (0.01, 0.7)
    assert (config.loop.save_steps, config.loop.output_dir) == (25, "model/P")


@pytest.mark.parametrize(
    "spelling",
    [
        "-t 6",
        "-t6",
        "-t=6",
        "--num-trainers 6",
        "--num-trainers=6",
        "--num_trainers 6",
        "--num_trainers=6",
        "--num-tr 6",
        "-t 2 -t 6",
        "--num-trainers 2 -t 6",
    ],
)
def test_a_flag_is_read_however_it_is_spelt_and_the_last_counts(spelling):
    with pytest.raises(ConfigError, match="-tbs 32 of 6 groups of trainers"):
        translated(plain(spelling))


def test_a_short_flag_is_no_start_of_a_longer_one():
    config = config_of(plain("-t 1 -tp 1 -tbs 16 -tMbs 16 -tmbs 4 -temp 0.7 -topk 5 -topp 0.5"))
    assert (config.sampling.temperature, config.sampling.top_k, config.sampling.top_p) == (0.7, 5, 0.5)
    assert config.optim.num_minibatches == 8  # 64 * 2 prompts in updates of 16


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("-tb 2", "ambiguous option: -tb could match"),
        ("--train-m 1", "ambiguous option: --train-m could match"),
        ("-t", "expected one argument"),
        ("-t two", "-t must be a whole number, such as 8, got 'two'"),
        ("-lr fast", "-lr must be a number, such as 1e-6, got 'fast'"),
        ("-temp nan", "-temp must be a finite number, got 'nan'"),
        ("-temp 0", "--temperature must be above 0, got 0.0"),
        ("-g 0", "-g must be at least 1, got 0"),
        ("-g 1", "--num-generations must be at least 2, got 1"),
        ("-a PPO", "-a must be one of DAPO, GRPO, REINFORCE_PPB, RLOO, got 'PPO'"),
        ("-rt math", "-rt must be one of think_answer_tags, boxed, code, got 'math'"),
        ("-b sglang", "-b must be one of transformers, vllm, got 'sglang'"),
        ("-b async-vllm", "-b async-vllm belongs to the branch for agents"),
        ("-pdp 2", "-pdp belongs to the branch for agents"),
        ("--use-lora", "rl_example.py has no flag --use-lora; leave it out"),
        ("--num-generation-s 3", "did you mean --num-generations"),
        ("-g 8 twice", "'twice' belongs to no flag; put quotes around a value with spaces"),
        ("-cp old/epoch-0_step-99", "-cp old/epoch-0_step-99 is a checkpoint of ColossalChat's"),
        ("-cbsl 4", "rl_example.py has no flag -cbsl"),
        ("-ed test.jsonl", "-ed must be a JSON object from names to paths, got 'test.jsonl'"),
        ("-ed \"{'a': 'a.jsonl'}\"", "JSON has double quotes, so the shell's are single ones: write -ed '{\"math\""),
        ("-ed '[\"a.jsonl\"]'", "-ed must be a JSON object from names to paths"),
        ('-ed \'{"a b": "a.jsonl"}\'', "-ed must name its sets with letters, digits, _, . and -, got 'a b'"),
        ("-nb -1", "--max-staleness must be at least 0, got -1"),
        ("-kl -1", "--beta must be at least 0, got -1.0"),
        ("-t 3 -tp 2", "-tp 2 times -pp 1 must divide -t 3"),
        ("-imbs 24", "-imbs must divide -ibs 64, got 24"),
        ("-tmbs 65", "-tmbs must be at most -tMbs times -g (64), got 65"),
    ],
)
def test_what_cannot_be_is_refused_with_flag_value_and_rule(flags, sentence):
    with pytest.raises(ConfigError) as refused:
        translated(plain(flags))
    assert sentence in str(refused.value)


def random_arguments(draw):
    some = (1, 2, 3, 4, 6, 8, 11, 16)
    return ColossalChatArguments(
        num_trainers=draw.choice(some),
        num_inferencer=draw.randint(1, 6),
        num_generations=draw.randint(2, 8),
        inference_batch_size=draw.choice(some),
        inference_microbatch_size=draw.choice(some),
        train_batch_size=draw.choice(some),
        train_minibatch_size=draw.choice(some),
        train_microbatch_size=draw.choice(some),
        tensor_parallel_size=draw.choice((1, 1, 2, 4)),
        pipeline_parallel_size=draw.choice((1, 1, 2)),
    )


def test_the_nearest_numbers_always_fit_and_numbers_that_fit_stay():
    draw = random.Random(0)
    fitting = 0
    for arguments in (random_arguments(draw) for _ in range(80)):
        changes = nearest(arguments)
        assert clashes(dataclasses.replace(arguments, **changes)) == [], arguments
        fitting += not clashes(arguments)
        assert bool(changes) == bool(clashes(arguments)), arguments
    assert fitting > 0


def test_large_numbers_are_repaired_as_well():
    large = ColossalChatArguments(num_trainers=64, num_inferencer=64, inference_batch_size=5000, train_batch_size=6000)
    changes = nearest(large)
    assert clashes(dataclasses.replace(large, **changes)) == []
    assert changes == {"inference_batch_size": 6000}  # -tbs 5000 is as near, and changes the size of an update


def test_no_single_other_number_would_have_been_enough_where_two_are_changed():
    draw = random.Random(1)
    sizes = [name for name in FIELDS if name.endswith("batch_size")]
    for arguments in (random_arguments(draw) for _ in range(30)):
        if len(nearest(arguments)) == 2:
            alone = [
                (name, value)
                for name in sizes
                for value in range(1, 241)
                if not clashes(dataclasses.replace(arguments, **{name: value}))
            ]
            assert alone == [], arguments


SOMETHING_ELSE = {
    "checkpoint_path": "old",
    "eval_dataset": '\'{"a": "a.jsonl"}\'',
    "num_trainers": "4",
    "inference_batch_size": "32",
    "train_microbatch_size": "4",
    "tensor_parallel_size": "2",
    "pipeline_parallel_size": "2",
    "zero_stage": "2",
    "learning_rate": "0.1",
    "top_p": "0.5",
    "temperature": "0.5",
    "backend": "transformers",
    "algo": "DAPO",
    "reward_type": "boxed",
    "enable_profiling": "",
    "save_dir": "elsewhere",
}
ALWAYS_SAID = ("eval_save_dir", "rollout_save_dir")
"""Flags whose note is there even where they are not given."""


@pytest.mark.parametrize("name", FIELDS)
def test_no_flag_is_ignored_in_silence(name):
    script = PLAIN if name not in LACKING[PLAIN] else ZERO_BUBBLE
    value = SOMETHING_ELSE.get(name, "16")
    before = translated(f"python {script} -b vllm -t 2")
    if name == "checkpoint_path":
        with pytest.raises(ConfigError, match="-cp old"):
            translated(plain("-cp old"))
        return
    after = translated(f"python {script} -b vllm -t 2 {flag(name)} {value}")
    said = {word for note in after.notes for word in note.about.split()}
    assert (after != before) is (name not in ALWAYS_SAID)
    assert after.options != before.options or {flag(name), long_flag(name)} & said


def test_the_interval_of_evaluation_is_counted_in_updates_there_and_in_steps_here():
    sets = """-ed '{"gsm8k": "a.jsonl", "math": "data/b.jsonl"}'"""
    config = config_of(plain(f"{sets} -ei 5"))  # 128 prompts a round, updates of 64: two
    assert config.data.held_out == (("gsm8k", "a.jsonl"), ("math", "data/b.jsonl"))
    assert (config.evaluation.eval_steps, config.evaluation.eval_size) == (3, None)
    assert (config.evaluation.eval_temperature, config.evaluation.eval_generations) == (0.6, 1)
    assert config_of(plain(sets)).evaluation.eval_steps == 0
    assert config_of("python rl_example_zero_bubble.py -b vllm " + sets).evaluation.eval_steps == 50


@pytest.mark.parametrize(
    ("reward", "judge", "stop"),
    [("think_answer_tags", "accuracy", ("</answer>",)), ("boxed", "boxed", ()), ("code", "code", ())],
)
def test_evaluation_asks_for_the_answer_and_not_for_the_format(reward, judge, stop):
    config = config_of(plain(f"""-rt {reward} -cv http://10.0.0.9:8000 -ed '{{"a": "a.jsonl"}}'"""))
    assert config.rewards.reward_funcs == (reward,)
    assert config.evaluation.eval_reward_func == judge
    assert config.sampling.stop == stop


def test_grpo_is_theirs():
    config = config_of(plain("-kl 0.02"))
    loss, advantage = config.loss, config.advantage
    assert (loss.clip_eps_low, loss.clip_eps_high, loss.average) == (0.2, 0.2, "sequence")
    assert (loss.beta, loss.kl) == (0.02, "k3")  # exp(ref - pi) - (ref - pi) - 1, without the ratio
    assert (advantage.advantage, advantage.filter_range) == ("group", None)
    assert config_of(plain("-kl 0")).loss.beta == 0


def test_dapo_is_theirs_with_the_papers_penalty_of_length():
    config = config_of(plain("-a DAPO -mnt 8192"))
    loss, advantage = config.loss, config.advantage
    assert (loss.clip_eps_low, loss.clip_eps_high, loss.average, loss.beta) == (0.2, 0.28, "token", 0.0)
    assert (advantage.filter_range, advantage.filter_func) == ((0.01, 0.99), "think_answer_tags")
    assert advantage.overlong_share == 1024 / 8192
    assert (advantage.mask_truncated, loss.skip_threshold) == (True, 20.0)
    assert "-kl" in notes_of(plain("-a DAPO -kl 0.1"), "idle")
    assert "-kl" not in notes_of(plain("-a DAPO"), "idle")


def test_the_penalty_begins_where_theirs_does_at_every_length():
    for length in range(8, 9000, 97):
        share = config_of(plain(f"-a DAPO -mnt {length}")).advantage.overlong_share
        assert round(share * length) == min(1024, int(length / 4))


def test_rloo_and_reinforce_are_theirs():
    rloo = config_of(plain("-a RLOO"))
    assert (rloo.advantage.advantage, rloo.loss.average, rloo.loss.bound) == ("leave_one_out", "sequence", "clip")
    assert (rloo.rewards.reward_weights, rloo.loss.beta) == ((10.0,), 0.01)
    reinforce = config_of(plain("-a REINFORCE_PPB -kl 0.05"))
    assert (reinforce.advantage.advantage, reinforce.loss.average) == ("group_mean_batch_std", "sequence")
    assert reinforce.loss.beta == 0.05


def test_the_default_backend_samples_from_its_fifty_most_probable_tokens():
    assert config_of("python rl_example.py").sampling.top_k == 50
    assert config_of(plain("-topk -1")).sampling.top_k == config_of(plain()).sampling.top_k == 0


def test_producers_of_several_devices_are_vllms():
    engine = config_of(plain("-ptp 2")).engine
    assert (engine.engine, engine.vllm_tensor_parallel, engine.vllm_memory) == ("vllm", 2, 0.7)
    assert "-ptp 2" in notes_of("python rl_example.py -b transformers -ptp 2", "missing")


@pytest.mark.parametrize("text", [SINGLE_MACHINE, BUBBLES, plain("-s '-- a, \"b\"\n' -a RLOO"), plain("-s ''")])
def test_the_command_and_the_file_that_are_printed_are_the_translation(text):
    found = translated(f"CUDA_VISIBLE_DEVICES=0,1 {text}", repair=True)
    config = build_config(found.options)
    assert build_config(parse(TRAIN, as_words(found.options)).options) == config
    assert build_config(parse_yaml(as_yaml(found.options), "run.yaml")) == config
    words = words_of(as_comments(found.notes) + as_shell(found))
    assert words == ["CUDA_VISIBLE_DEVICES=0,1", "paceline", "train", *as_words(found.options)]
    assert all(line.startswith("#") for line in as_comments(found.notes).splitlines())


def test_the_command_prints_a_command_a_file_or_the_reason(capsys):
    command = words_of(SINGLE_MACHINE)
    assert main(["translate", "--", *command]) == 2
    assert "The nearest that fit: add -ibs 2 -tMbs 2" in capsys.readouterr().err
    assert main(["translate", "--repair", "--", *command]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# settled:")
    assert "\npaceline train \\\n    --model /path/to/Qwen2.5-3B/ \\\n" in out
    assert main(["translate", "--repair", "--yaml", "--", *command]) == 0
    assert build_config(parse_yaml(capsys.readouterr().out, "run.yaml")) == config_of(SINGLE_MACHINE, repair=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "needs a command behind --"),
        ("python rl_example.py", "needs a command behind --"),
        ("--", "needs a command behind --"),
        ("--repiar -- python rl_example.py", "has no flag --repiar; did you mean --repair?"),
        ("-- make coffee", "knows ColossalChat's `python rl_example.py"),
        ("-- python train.py -t 4", "got 'python'"),
        ("-- A=1", "got 'nothing'"),
    ],
)
def test_a_command_that_is_none_is_refused(capsys, words, sentence):
    assert main(["translate", *shlex.split(words)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "start", ["python", "python3.10 -u", "/usr/bin/python3", "CUDA_VISIBLE_DEVICES=0 python", "A=1 B='2 3' python"]
)
def test_the_script_is_found_behind_any_python_and_assignments(start):
    assert config_of(f"{start} applications/ColossalChat/rl_example.py -b vllm") == config_of(plain())


def test_the_script_is_found_where_it_is_run_itself():
    assert config_of("./rl_example.py -b vllm") == config_of(plain())
