"""The command line: what it prints, what it answers, how flags become a configuration."""

import logging
import re
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline.cli.arguments import help_page, parse
from paceline.cli.chat import Chat, ChatTools
from paceline.cli.eval import COMMAND as EVAL
from paceline.cli.main import COMMANDS, exit_status, main
from paceline.cli.replay import other_objective
from paceline.cli.train import COMMAND as TRAIN
from paceline.config.building import build_config
from paceline.config.flat_yaml import to_yaml
from paceline.config.reading import options
from paceline.environments import AgentTurn, EnvironmentSpec, Observation, ToolCall
from paceline.environments.hosting import Hosts
from paceline.errors import ConfigError, ModelError, TrainingError
from paceline.models.places import model_place
from paceline.training.plan.batches import batch_plan, describe, total_steps
from paceline.training.setup.checks import refuse_training_rows
from paceline.training.setup.configuration import read_configuration, read_run_configuration
from paceline.training.setup.run_request import default_output_dir

REQUIRED = {"model": "org/some-model", "dataset": "data/rows.jsonl"}

ROOT = Path(__file__).parents[3]


def flags(words):
    return parse(TRAIN, words.split()).options


def config_of(words):
    given = parse(TRAIN, words.split())
    return read_configuration(given.options, file=given.flags.get("config")).config


def test_paceline_alone_says_what_it_can_do(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"paceline {name}" in out for name in COMMANDS)


def test_what_paceline_says_of_itself_fits_a_narrow_terminal(capsys):
    main(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("report", "report needs a run directory; write `paceline report runs/NAME`"),
        ("report --open r", "there is no option --open; `paceline report RUN [RUN ...]` takes directories only"),
        ("export", "export needs a run directory; write `paceline export runs/NAME`"),
        ("export a b c", "export takes RUN [DIRECTORY], got 3 directories; leave out c"),
    ],
)
def test_a_command_that_takes_directories_alone_says_so(words, sentence, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"paceline: {sentence}\n"


ENDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
# writes to standard error when the process ends
libc.__cxa_atexit(ctypes.cast(libc.malloc_stats, ctypes.c_void_p), None, None)
{}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a function of glibc")
def test_what_libraries_report_of_themselves_after_the_end_does_not_reach_the_terminal():
    ours = "from paceline.cli.main import main\nsys.argv[1:] = ['nothing']\nsys.exit(main())"
    alone, here = (
        subprocess.run([sys.executable, "-c", ENDS.format(code)], capture_output=True, text=True, check=False)
        for code in ("", ours)
    )
    assert "Arena 0" in alone.stderr
    assert here.returncode == 2
    assert here.stderr.startswith("paceline: there is no command 'nothing'")
    assert len(here.stderr.splitlines()) == 1


def test_the_kernel_that_bitsandbytes_cannot_fetch_is_not_told(caplog):
    with caplog.at_level(logging.NOTSET):
        logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load CPU gemm_4bit_forward")
    assert caplog.records == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"paceline \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: paceline {command}")


def test_the_help_holds_every_option_with_its_default_under_its_section():
    page = " ".join(help_page(TRAIN).split())
    assert all(f"{option.flag} " in page for option in options())
    assert "loss: Objective: bounds of the ratio" in page
    assert "--clip-eps-low X `clip`: the ratio is held above `1 - clip_eps_low`. (default: 0.2)" in page
    assert "--shuffle [true|false] A new order each epoch, fixed by `seed`. (default: true)" in page
    assert "--stop TEXT [TEXT ...]" in page


def test_the_short_help_holds_what_the_readme_the_recipes_and_the_examples_use(capsys):
    assert main(["train", "--help"]) == 0
    page = capsys.readouterr().out
    shown = set(re.findall(r"(?m)^  (--[a-z-]+)", page)) & {option.flag for option in options()}
    assert len(shown) <= 60
    examples = [file for kind in ("py", "yaml", "md", "sbatch") for file in (ROOT / "examples").rglob(f"*.{kind}")]
    files = [ROOT / "README.md", *(ROOT / "recipes").glob("*.yaml"), *examples]
    texts = [file.read_text(encoding="utf-8") for file in files]
    used = {one.flag for one in options() for text in texts if re.search(rf"{one.flag}\b|(?m:^{one.name}:)", text)}
    assert used <= shown
    assert f"`paceline train --help all` says more, and shows the {len(options()) - len(shown)} other options" in page
    assert main(["train", "--help", "all"]) == 0
    assert capsys.readouterr().out == help_page(TRAIN)
    assert main(["train", "--help", "some"]) == 2
    assert "--help takes nothing, or all for every option, got 'some'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--learning-rate 1e-5", {"learning_rate": "1e-5"}),
        ("--learning_rate=1e-5", {"learning_rate": "1e-5"}),
        ("--max-steps 1 --max_steps 2", {"max_steps": "2"}),
        ("--reward-funcs accuracy format --seed 1", {"reward_funcs": ["accuracy", "format"], "seed": "1"}),
        ("--reward-funcs accuracy,format", {"reward_funcs": ["accuracy,format"]}),
        ("--gradient-checkpointing --seed 1", {"gradient_checkpointing": "true", "seed": "1"}),
        ("--shuffle false", {"shuffle": "false"}),
        ("--beta -1e-4", {"beta": "-1e-4"}),
        ("--reward-weights 1 -1e-1 -.5", {"reward_weights": ["1", "-1e-1", "-.5"]}),
        ("--stop --> -3 --seed 1", {"stop": ["-->", "-3"], "seed": "1"}),
        ("--system-prompt -->", {"system_prompt": "-->"}),
        ("--stop=-x", {"stop": ["-x"]}),
        ("--dataset my_rows.jsonl", {"dataset": ["my_rows.jsonl"]}),
        ("--system-prompt=--a_b", {"system_prompt": "--a_b"}),
        ("--system-prompt=", {"system_prompt": ""}),
    ],
)
def test_flags_are_read(words, given):
    assert flags(words) == given


def test_an_option_of_training_is_no_option_of_evaluation():
    with pytest.raises(ConfigError, match=r"--learning-rate is no option of `paceline eval`, only of training"):
        parse(EVAL, ["--learning-rate", "1"])


def test_evaluation_holds_conversations_too(tmp_path, capsys):
    rows = tmp_path / "games.jsonl"
    rows.write_text('{"question": "Let us play."}\n')
    lengths = ["--max-turns", "2", "--max-completion-length", "32", "--max-prompt-length", "64"]
    options = [
        "--dataset",
        str(rows),
        "--environment",
        "guess:5",
        "--reward-funcs",
        "none",
        "--system-prompt=",
        *lengths,
    ]
    assert main(["eval", *options]) == 0
    assert "n = 1" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--turn-credit is no option of `paceline eval`, only of training"):
        parse(EVAL, ["--turn-credit", "1"])


def test_without_config_and_model_the_recipe_is_the_ground():
    configuration = read_configuration(parse(TRAIN, ["--seed", "3"]).options)
    assert configuration.config.model.model == "embedded"
    assert configuration.config.loop.seed == 3
    assert "the embedded recipe and the flags given" in configuration.origin


def test_the_recipes_warm_up_gives_way_to_a_shorter_run_but_a_given_one_does_not():
    assert config_of("--max-steps 2").optim.warmup_steps == 2
    with pytest.raises(ConfigError, match=r"--warmup-steps must be at most --max-steps \(2\), got 5"):
        config_of("--max-steps 2 --warmup-steps 5")


def test_with_a_model_the_recipe_is_left_out():
    config = config_of("--model m --dataset d")
    assert config == build_config({"model": "m", "dataset": "d"})


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("model: m\ndataset: d\nmax-steps: 5\nseed: 1\n")
    config = config_of(f"--config {tmp_path}/run.yaml --max_steps 7")
    assert (config.loop.max_steps, config.loop.seed, config.model.model) == (7, 1, "m")


@pytest.mark.parametrize(
    ("ground", "flags", "steps", "epochs"),
    [
        ("max-steps: 50", "--num-epochs 2", None, 2.0),
        ("num_epochs: 3", "--max-steps 7", 7, 1.0),
        ("max_steps: 50", "--num-epochs 2 --max-steps none", None, 2.0),
        ("num_epochs: 3", "--max-steps none", None, 3.0),
        ("max_steps: 50\nnum_epochs: 1.0", "", 50, 1.0),  # as a resolved configuration has it
    ],
)
def test_the_length_of_a_run_is_what_is_given_nearer(tmp_path, ground, flags, steps, epochs):
    (tmp_path / "run.yaml").write_text(f"model: m\ndataset: d\n{ground}\n")
    loop = config_of(f"--config {tmp_path}/run.yaml {flags}").loop
    assert (loop.max_steps, loop.num_epochs) == (steps, epochs)


def test_epochs_take_the_place_of_a_recipes_steps():
    loop = config_of("--num-epochs 2").loop
    assert (loop.max_steps, loop.num_epochs) == (None, 2.0)


def test_a_system_prompt_given_nearer_takes_the_others_place(tmp_path):
    (tmp_path / "run.yaml").write_text("model: m\ndataset: d\nsystem_prompt: file:far.txt\n")
    data = config_of("--system-prompt file:near.txt").data  # over the recipe's system_prompt
    assert data.system_prompt_file == "near.txt"
    data = config_of(f"--config {tmp_path}/run.yaml --system-prompt Brief.").data
    assert (data.system_prompt, data.system_prompt_file) == ("Brief.", None)


@pytest.mark.parametrize("place", ["flags", "file"])
@pytest.mark.parametrize("both", [("max_steps: 5", "num_epochs: 2")], ids=["length"])
def test_both_ways_to_say_one_thing_in_one_place_are_refused(tmp_path, place, both):
    text = "\n".join(("model: m", "dataset: d", *(both if place == "file" else ())))
    (tmp_path / "run.yaml").write_text(text + "\n")
    flags = " ".join("--" + entry.replace(":", "") for entry in both) if place == "flags" else ""
    names = [entry.partition(":")[0].replace("_", "-") for entry in both]
    with pytest.raises(ConfigError, match=rf"--{names[0]} and --{names[1]} are both given; give one of them"):
        config_of(f"--config {tmp_path}/run.yaml {flags}")


def test_a_file_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xef\xbb\xbfmodel: m\r\ndataset: d\r\n")
    assert config_of(f"--config {tmp_path}/run.yaml").data.dataset == "d"


def test_a_resumed_run_is_configured_as_it_was(tmp_path):
    config = build_config({**REQUIRED, "seed": 5, "output_dir": "elsewhere"})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert read_run_configuration(tmp_path) == config


ANOTHER_BOUND = [
    ({}, "sapo", 0.28, (1.0, 1.05)),
    ({}, "cispo", 4.0, ()),
    ({"clip_eps_high": 0.2, "bound_shape": (3.0,)}, "sapo", 0.2, (1.0, 1.05)),  # a chosen one stays
    ({"preset": "scalerl"}, "clip", 0.28, ()),
    ({"bound": "cispo", "clip_eps_high": 5.0}, "clip", 5.0, ()),
    ({"bound": "sapo", "bound_shape": (2.0, 0.5)}, "vespo", 0.28, (2.0, 3.0, 3.0, 2.0)),
    ({"bound": "sapo", "bound_shape": (2.0, 0.5)}, "sapo", 0.28, (2.0, 0.5)),
    ({"bound": "cispo", "clip_eps_high": 5.0}, "cispo", 5.0, ()),
]
"""Options of a run, a bound that is given with it, the upper bound of the ratio that follows and the shape."""


@pytest.mark.parametrize(("own", "bound", "high", "shape"), ANOTHER_BOUND)
def test_another_bound_of_a_run_leaves_the_numbers_of_the_old_one_behind(tmp_path, own, bound, high, shape):
    config = build_config({**REQUIRED, **own})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    resumed = read_run_configuration(tmp_path, given={"bound": bound})
    assert (resumed.loss.bound, resumed.loss.clip_eps_high, resumed.loss.shape) == (bound, high, shape)
    if bound != "cispo":  # `replay` brings CISPO's upper bound in any case
        assert other_objective(config, {"bound": bound}).loss == resumed.loss


def test_a_preset_with_a_bound_of_its_own_leaves_the_old_shape_behind(tmp_path):
    config = build_config({**REQUIRED, "bound_shape": (3.0,)})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    resumed = read_run_configuration(tmp_path, given={"preset": "cispo"})
    assert (resumed.loss.bound, resumed.loss.clip_eps_high, resumed.loss.shape) == ("cispo", 4.0, ())
    both = read_run_configuration(tmp_path, given={"preset": "grpo", "bound": "cispo"})
    assert both == build_config({**REQUIRED, "preset": "grpo", "bound": "cispo"})  # as a new run has it


@pytest.mark.parametrize(
    ("own", "given", "correction"),
    [
        ({}, {"engine_quantization": "fp8"}, "token_truncate"),
        ({}, {"max_staleness": "1", "cluster": "true"}, "token_truncate"),
        ({"engine_quantization": "fp8"}, {"engine_quantization": "none"}, "none"),
        ({"rollout_correction": "token_mask"}, {"engine_quantization": "fp8"}, "token_mask"),  # a chosen one stays
        ({}, {"engine_quantization": "fp8", "rollout_correction": "none"}, "none"),
        ({"engine_quantization": "fp8", "rollout_correction": "none"}, {"seed": "1"}, "none"),
    ],
)
def test_a_run_that_samples_from_another_distribution_from_now_on_is_corrected(tmp_path, own, given, correction):
    (tmp_path / "config.yaml").write_text(to_yaml(build_config({**REQUIRED, **own})))
    assert read_run_configuration(tmp_path, given=given).loss.rollout_correction == correction


def test_a_run_whose_file_has_no_line_of_the_upper_bound_takes_another_bound(tmp_path):
    text = to_yaml(build_config(REQUIRED))
    kept = [line for line in text.splitlines() if not line.startswith("clip_eps_high")]
    (tmp_path / "config.yaml").write_text("\n".join(kept))
    assert read_run_configuration(tmp_path, given={"bound": "cispo"}).loss.clip_eps_high == 4.0


def test_a_run_without_a_name_is_named_for_model_dataset_and_time():
    path = default_output_dir(build_config({**REQUIRED, "dataset": "reasoning_gym:gcd"}))
    assert re.fullmatch(r"runs/some-model-reasoning_gym-gcd-\d{8}-\d{6}", str(path))


@pytest.mark.parametrize("model", ["a/..", "/", "..", "a b/../c;d", "über/modell"])
def test_a_runs_name_stays_inside_runs(model):
    path = default_output_dir(build_config({**REQUIRED, "model": model}))
    assert path.parent.name == "runs"
    assert len(path.parts) == 2


def test_steps_cover_the_epochs_and_the_last_may_be_short():
    config = build_config({**REQUIRED, "prompts_per_step": 32, "num_epochs": 2})
    assert total_steps(config, 100) == 7  # 200 prompts: 6 whole steps and one of 8
    assert total_steps(config, None) is None


def test_a_fraction_of_an_epoch_is_counted_in_tasks_not_in_rounding_errors():
    config = build_config({**REQUIRED, "prompts_per_step": 1, "num_epochs": 1.1})
    assert total_steps(config, 10) == 11  # 1.1 * 10 is 11.000000000000002


def test_the_batch_plan_by_hand():
    given = {"prompts_per_step": 4, "num_generations": 8, "max_completion_length": 100, "max_prompt_length": 50}
    config = build_config({**REQUIRED, **given, "max_steps": 25, "eval_steps": 10, "save_steps": 10})
    plan = batch_plan(config, 40)
    assert plan.completions_per_step == 32
    assert plan.completion_tokens_per_step == 3_200
    assert plan.prompt_tokens_per_step == 200
    assert (plan.steps, plan.epochs, plan.checkpoints) == (25, 2.5, 2)
    assert plan.evaluations == 4  # before the first step, after 10, 20 and the last
    text = describe(plan)
    assert "32 = 4 prompts x 8" in text
    assert re.search(r"sampled tokens in all +at most 80,000\n", text)


def test_a_plan_counts_every_round_of_refills():
    plan = batch_plan(build_config({**REQUIRED, "preset": "dapo", "prompts_per_step": 2, "max_steps": 10}), 100)
    assert plan.completion_tokens_per_step == 4 * 2 * 8 * 512
    assert re.search(r"refills of a step +at most 3 rounds, counted above", describe(plan))
    assert re.search(r"passes over the tasks +0\.2, and more by refills", describe(plan))


def test_a_plan_without_a_count_of_tasks_says_so():
    plan = batch_plan(build_config(REQUIRED), None)
    assert plan.steps is plan.checkpoints is plan.evaluations is None
    assert "unknown, as the tasks are not counted" in describe(plan)


def test_evaluating_never_in_between_still_means_before_and_after():
    assert batch_plan(build_config({**REQUIRED, "max_steps": 5, "eval_steps": 0}), None).evaluations == 2


def test_an_interrupt_ends_with_130_and_how_to_go_on(capsys):
    def interrupted():
        raise KeyboardInterrupt("go on with `paceline train --resume R`")

    assert exit_status(interrupted) == 130
    assert capsys.readouterr().err == "paceline: interrupted; go on with `paceline train --resume R`\n"


def test_a_failed_run_ends_with_1_and_a_wrong_input_with_2(capsys):
    def failed():
        raise TrainingError("the loss is not finite\nat step 3")

    def misused():
        raise ConfigError("--seed must be a whole number")

    assert (exit_status(failed), exit_status(misused)) == (1, 2)
    assert capsys.readouterr().err == (
        "paceline: the loss is not finite at step 3\npaceline: --seed must be a whole number\n"
    )


def test_a_fault_of_our_own_keeps_its_traceback():
    def faulty():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_status(faulty)


def test_a_traceback_of_the_users_own_code_keeps_its_lines(capsys):
    def fail():
        raise TrainingError(
            "function 'f' failed\n  on row 3\nTraceback (most recent call last):\n  File a\nValueError: x"
        )

    assert exit_status(fail) == 1
    assert capsys.readouterr().err == (
        "paceline: function 'f' failed on row 3\nTraceback (most recent call last):\n  File a\nValueError: x\n"
    )


def test_a_model_of_the_hub_may_be_called_as_one_of_the_package():
    assert model_place("me/embedded-programs").base == "me/embedded-programs"
    with pytest.raises(ModelError, match=r"did you mean embedded-programs\?"):
        model_place("embedded-program")


@pytest.mark.parametrize(
    ("words", "refused"),
    [({}, True), ({"eval_split": "train"}, True), ({"eval_split": "validation"}, False), ({"eval_share": 0.1}, False)],
)
def test_a_run_is_measured_on_tasks_that_it_kept_apart(tmp_path, words, refused):
    for split in ("train", "validation"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{split}.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    options = {**REQUIRED, "dataset": str(tmp_path / "set"), "model": str(tmp_path / "final"), **words}
    config, another = build_config(options), build_config({**options, "model": "another"})
    file = tmp_path / "config.yaml"
    file.write_text("# paceline 0.1\n")
    refuse_training_rows(config, None, ())
    refuse_training_rows(config, file, {"dataset_split"})
    refuse_training_rows(another, file, ())
    with pytest.raises(ConfigError, match="kept no tasks apart from --dataset") if refused else nullcontext():
        refuse_training_rows(config, file, ())


def test_an_export_that_cannot_be_made_is_refused_before_weights_are_read(tmp_path, capsys):
    run, there = tmp_path / "run", tmp_path / "there"
    for folder in (run, there):
        folder.mkdir()
    assert main(["export", str(run)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    (run / "config.yaml").write_text("# paceline 0.1\nmodel: embedded\ndataset: arithmetic\n")
    (there / "a").touch()
    assert main(["export", str(run), str(there)]) == 2
    assert "which is there; name a directory that is not" in capsys.readouterr().err
    assert main(["export", str(run)]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert main(["export", str(run), "--merge-lora"]) == 2
    assert "--merge-lora is no option of `paceline export`" in capsys.readouterr().err


class Stopped:
    """A tool of a terminal's conversation whose first call is stopped by Ctrl-C, and goes on until the test ends."""

    made, over = 0, threading.Event()

    def __init__(self):
        type(self).made += 1
        self.number = self.made

    def begin(self, task, seed):
        return None

    def observe(self, turn):
        if self.number == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            self.over.wait()
        return Observation(messages=({"role": "tool", "content": f"tools {self.number}"},))

    def close(self):
        return None


@pytest.mark.usefixtures("heeded_signals")
def test_tools_of_a_stopped_call_are_made_anew(capsys):
    turns = [AgentTurn(number=0, text="", content="", calls=(ToolCall(name="f", arguments={}),), is_last=False,
                       finish_reason="stop"),
             AgentTurn(number=1, text="", content="done", is_last=False, finish_reason="stop")]  # fmt: skip
    spec = EnvironmentSpec(name="stopped", make=Stopped)
    with Hosts(step_seconds=60.0) as hosts:
        chat = Chat(None, lambda: ChatTools(hosts, spec), system="", most_turns=None, seed=None)
        said = iter([turns[0], *turns])
        chat._sample = lambda schemas: next(said)
        with pytest.raises(KeyboardInterrupt):
            chat.say("first")
        chat.say("again")
        Stopped.over.set()
    assert "[-> tools 2]" in capsys.readouterr().out
    assert Stopped.made == 2
