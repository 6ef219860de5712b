"""The library's face: a run by keywords and objects, and a loop of one's own, beside the command line's."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import paceline
from examples import own_loop
from paceline.cli.main import main
from paceline.errors import ConfigError, TrainingError
from tests.support.forked import torchrun
from tests.support.tiny import tiny_model, tiny_tokenizer

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]
SMALL = {
    "max_steps": 3,
    "prompts_per_step": 2,
    "num_generations": 4,
    "max_completion_length": 12,
    "learning_rate": 0.01,
    "system_prompt": "",
}


def variety(completions, **columns):
    return [len(set(text)) / 10 for text in completions]


@pytest.fixture
def model(tmp_path) -> Path:
    tiny_model("qwen2").save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def weights(run: paceline.TrainedRun) -> bytes:
    return (run.final_dir / "model.safetensors").read_bytes()


def by_hand(change=lambda groups: groups, **options) -> paceline.TrainedRun:
    with paceline.Session(**{**SMALL, **options}) as session:
        for _ in session:
            session.update(change(session.sample()))
    return session.run


def without_update(**options) -> None:
    with paceline.Session(**options) as session:
        for _ in session:
            session.sample()


def test_rows_and_functions_may_be_objects_and_the_run_is_that_of_their_files(tmp_path, model):
    run = paceline.train(
        model=model, dataset=ROWS, reward_funcs=variety, eval_dataset={"sums": ROWS[:2]}, output_dir=tmp_path / "run",
        allow_overlap=True, **SMALL,
    )  # fmt: skip
    assert [step.step for step in run.metrics] == [1, 2, 3]
    assert run.metrics[0]["reward_mean"] == run.metrics[0].reward_mean > 0
    assert [(one.set, one.step, one.n) for one in run.evals] == [("sums", 0, 2), ("sums", 3, 2)]
    assert {one["task_id"] for one in run.rollouts(1)} <= {f"dataset:{number}" for number in range(1, 7)}
    assert run.summary.finished
    assert run.report() == tmp_path / "run" / "report.html"


def test_a_model_object_is_trained_in_place(tmp_path):
    policy = tiny_model("qwen2")
    before = policy.get_input_embeddings().weight.detach().clone()
    run = paceline.train(
        model=policy, tokenizer=tiny_tokenizer(), dataset=ROWS, reward_funcs=[variety], output_dir=tmp_path / "run",
        **SMALL,
    )  # fmt: skip
    after = load_file(run.final_dir / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(policy.get_input_embeddings().weight, after)
    assert not torch.equal(before, after)


def test_a_loop_of_ones_own_that_changes_nothing_is_the_run_of_train(tmp_path, model):
    options = {"model": model, "dataset": ROWS, "reward_funcs": variety}
    whole = paceline.train(**options, output_dir=tmp_path / "whole", **SMALL)
    loop = by_hand(**options, output_dir=tmp_path / "loop")
    assert weights(whole) == weights(loop)
    measured = ("clock", "rewards")
    assert [{key: value for key, value in one.items() if key not in measured} for one in whole.metrics] == [
        {key: value for key, value in one.items() if key not in measured} for one in loop.metrics
    ]


def test_advantages_of_ones_own_are_those_that_are_trained_on(tmp_path, model):
    """Doubled advantages double the gradient, and none leave the weights as they are."""

    def times(factor):
        return lambda groups: [
            replace(group, rollouts=tuple(replace(one, advantage=factor * one.advantage) for one in group.rollouts))
            for group in groups
        ]

    options = {"model": model, "dataset": ROWS, "reward_funcs": variety, "max_steps": 1}
    once, twice, none = (by_hand(times(f), **options, output_dir=tmp_path / str(f)) for f in (1, 2, 0))
    assert twice.metrics[0].grad_norm == pytest.approx(2 * once.metrics[0].grad_norm, rel=1e-4)
    start = {name: one.detach() for name, one in tiny_model("qwen2").state_dict().items()}
    final = load_file(none.final_dir / "model.safetensors")
    assert all(torch.equal(start[name], one) for name, one in final.items())
    assert (none.metrics[0].updates, none.metrics[0].groups_zero_deviation) == (0, 2)


def test_an_advantage_and_a_loss_given_as_functions_are_those_of_the_options_that_they_copy(tmp_path, model):
    def centred(rewards):
        there = [reward for reward in rewards if reward is not None]
        return [0.0 if reward is None else reward - sum(there) / len(there) for reward in rewards]

    def plain(batch):
        return -batch.ratio * batch.advantages

    options = {"model": model, "dataset": ROWS, "reward_funcs": variety, **SMALL}
    named = paceline.train(**options, advantage="none", bound="none", output_dir=tmp_path / "named")
    own = paceline.train(**options, advantage=centred, bound=plain, output_dir=tmp_path / "own")
    assert [one.grad_norm for one in own.metrics] == pytest.approx([one.grad_norm for one in named.metrics], rel=1e-4)
    with pytest.raises(ConfigError, match="bound"):
        paceline.train(**options, bound=lambda batch: plain(batch).mean().expand_as(batch.ratio))


def test_a_group_that_a_loop_leaves_out_is_counted_and_not_trained_on(tmp_path, model):
    run = by_hand(lambda groups: groups[1:], model=model, dataset=ROWS, reward_funcs=variety, output_dir=tmp_path / "r")
    assert [one.groups_filtered for one in run.metrics] == [1, 1, 1]
    assert [one.prompts for one in run.metrics] == [2, 2, 2]


def test_an_evaluation_and_a_checkpoint_come_when_a_loop_asks_for_them(tmp_path, model):
    rows = {"dataset": ROWS, "eval_dataset": ROWS[:2], "allow_overlap": True, "reward_funcs": variety}
    with paceline.Session(model=model, **rows, output_dir=tmp_path / "run", **SMALL) as session:
        for step in session:
            session.update(session.sample())
            if step == 2:
                assert session.evaluate()[0].step == 2
                session.save()
    assert [one.step for one in session.run.metrics] == [1, 2, 3]
    assert [one.step for one in session.run.evals] == [0, 2, 3]
    undisturbed = weights(session.run)
    resumed = paceline.train(resume=tmp_path / "run" / "checkpoints" / "step-000002", **rows)
    assert weights(resumed) == undisturbed


def test_a_loop_that_is_left_early_ends_its_run_with_the_steps_that_it_updated(tmp_path, model):
    with paceline.Session(model=model, dataset=ROWS, reward_funcs=variety, output_dir=tmp_path / "r", **SMALL) as two:
        for step in two:
            two.update(two.sample())
            if step == 2:
                break
    options = {"model": model, "dataset": ROWS, "reward_funcs": variety, **SMALL, "max_steps": 2}
    whole = paceline.train(**options, output_dir=tmp_path / "whole")
    assert [one.step for one in two.run.metrics] == [1, 2]
    assert weights(two.run) == weights(whole)


@pytest.mark.long
def test_functions_and_rows_of_a_program_reach_the_actors_of_a_cluster(tmp_path, model):
    pytest.importorskip("ray")
    penalty = 0.01

    def brief(completions, **columns):
        return [1.0 - penalty * len(text) for text in completions]

    options = {"model": model, "dataset": ROWS, "reward_funcs": brief, **SMALL}
    here = paceline.train(**options, output_dir=tmp_path / "here")
    cluster = paceline.train(**options, cluster=True, output_dir=tmp_path / "cluster")
    assert weights(here) == weights(cluster)
    with pytest.raises(ConfigError, match="model must be a name with cluster, got a Qwen2ForCausalLM"):
        paceline.train(
            **{**options, "model": tiny_model("qwen2")},
            tokenizer=tiny_tokenizer(),
            cluster=True,
            output_dir=tmp_path / "object",
        )


SCRIPT = """
import sys

import paceline


def variety(completions, **columns):
    return [len(set(text)) / 10 for text in completions]


model, place = sys.argv[1:]
rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]
options = {"model": model, "dataset": rows, "reward_funcs": variety, "system_prompt": "", "learning_rate": 0.01}
options |= {"max_steps": 3, "prompts_per_step": 2, "num_generations": 4, "max_completion_length": 12}
run = paceline.train(**options, output_dir=f"{place}/train")
assert [one.step for one in run.metrics] == [1, 2, 3]
with paceline.Session(**options, output_dir=f"{place}/hand") as session:
    for _ in session:
        session.update(session.sample())
assert [one.step for one in session.run.metrics] == [1, 2, 3]
"""


@pytest.mark.long
def test_on_ranks_every_one_runs_the_program_and_the_weights_are_those_of_one_process(tmp_path, model):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = paceline.train(model=model, dataset=ROWS, reward_funcs=variety, output_dir=tmp_path / "one", **SMALL)
    done = torchrun(script, model, tmp_path / "ranks")
    assert done.returncode == 0, done.stderr[-2000:]
    alone = load_file(here.final_dir / "model.safetensors")
    for name in ("train", "hand"):
        together = load_file(tmp_path / "ranks" / name / "final" / "model.safetensors")
        assert max(float((alone[key] - together[key]).abs().max()) for key in alone) < 1e-5


@pytest.mark.usefixtures("heeded_signals")
def test_an_interrupted_loop_finishes_its_step_and_the_resumed_one_ends_with_the_same_weights(tmp_path, model):
    options = {"model": str(model), "dataset": ROWS, "reward_funcs": variety}
    undisturbed = by_hand(**options, output_dir=tmp_path / "undisturbed")

    def interrupt(groups):
        os.kill(os.getpid(), signal.SIGINT)
        return groups

    with pytest.raises(KeyboardInterrupt, match="SIGINT after step 1"):
        by_hand(interrupt, **options, output_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "final").exists()
    resumed = by_hand(dataset=ROWS, reward_funcs=variety, resume=tmp_path / "run")
    assert [one.step for one in resumed.metrics] == [1, 2, 3]
    assert weights(resumed) == weights(undisturbed)


def test_evaluate_finds_what_the_run_found_at_its_end(tmp_path, model, capsys):
    run = paceline.train(
        model=model, dataset=ROWS, eval_dataset={"sums": ROWS[:4]}, reward_funcs=variety, output_dir=tmp_path / "run",
        allow_overlap=True, **SMALL,
    )  # fmt: skip
    (found,) = paceline.evaluate(
        model=run.final_dir, dataset=ROWS, eval_dataset={"sums": ROWS[:4]}, system_prompt="", max_completion_length=12
    )
    last = run.evals[-1]
    assert {**found.record(), "step": 3, "clock": None} == {**last, "clock": None}
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_stepz": 3}, "there is no option max_stepz; did you mean max_steps?"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"dataset": 3}, "dataset must be an address or rows, got a int; give a list of dicts or a datasets.Dataset"),
        ({"dataset": [1, 2]}, "row dataset:1 must be a dict of columns, got a int"),
        ({"model": object()}, "model must be a name, a PreTrainedModel or a PeftModel, got a object"),
        ({"reward_funcs": [variety, variety]}, "reward_funcs must hold each function once, got variety twice"),
        ({"dataset": []}, "dataset must have at least one row, got none; give rows, or an address"),
        ({"dataset": ROWS, "eval_dataset": "dataset"}, "eval_dataset dataset is the name of the rows that are given"),
        ({"eval_dataset": {"a=b": ROWS}}, "eval_dataset must name its sets by letters, digits, dots and hyphens"),
        ({"override": ["seed"]}, "override names options that a resumed run may change, and resume is None"),
    ],
)
def test_a_wrong_keyword_is_refused_in_the_words_of_keywords_before_anything_is_loaded(options, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(").replace("?", r"\?")) as refused:
        paceline.Session(**{"model": "embedded", **options})
    assert "--" not in str(refused.value)


@pytest.mark.parametrize("called", ["none", "accuracy", "a=b", "f(x)", "model:q", "a,b", "true", ""])
def test_a_function_grades_whatever_it_is_called(tmp_path, model, called):
    def counting(completions, **columns):
        return [0.25 for _ in completions]

    counting.__name__ = called
    options = {**SMALL, "model": model, "dataset": ROWS, "reward_funcs": [counting], "eval_reward_func": counting}
    with paceline.Session(**options, output_dir=tmp_path / "run") as session:
        next(iter(session))
        groups = session.sample()
    assert {rollout.reward for group in groups for rollout in group.rollouts} == {0.25}


def test_a_body_that_does_not_do_its_part_is_told_so(tmp_path, model):
    options = {**SMALL, "model": model, "dataset": ROWS, "reward_funcs": variety}
    with pytest.raises(ValueError, match=r"sample\(\) belongs to a step; call it within `for step in session:`"):
        paceline.Session(**options).sample()
    with pytest.raises(TrainingError, match=r"step 1 has no update; call sample\(\) and update\(groups\) in each step"):
        without_update(**options, output_dir=tmp_path / "a")
    kept = []
    with pytest.raises(ValueError, match=r"update must get groups of the same step's sample\(\), each once and with"):
        by_hand(lambda groups: kept.extend(groups) or kept, **options, output_dir=tmp_path / "b")

    def again(groups):
        return [groups[0], *groups]

    with pytest.raises(ValueError, match="update must get groups of the same step"):
        by_hand(again, **options, output_dir=tmp_path / "again")

    def swapped(groups):
        return [replace(groups[0], task=groups[1].task), *groups[1:]]

    with pytest.raises(ValueError, match="update must get groups of the same step"):
        by_hand(swapped, **options, output_dir=tmp_path / "swapped")

    def spoilt(groups):
        rollouts = tuple(replace(one, advantage=float("nan")) for one in groups[0].rollouts)
        return [replace(groups[0], rollouts=rollouts)]

    with pytest.raises(ValueError, match="every advantage must be a finite number, got"):
        by_hand(spoilt, **options, output_dir=tmp_path / "c")


def test_a_step_is_sampled_once_and_updated_once_and_a_loop_that_was_left_goes_on_behind_it(tmp_path, model):
    session = paceline.Session(model=model, dataset=ROWS, reward_funcs=variety, output_dir=tmp_path / "run", **SMALL)
    with pytest.raises(ValueError, match="the session is not open; use it within `with`"):
        next(iter(session))
    with session:
        for _ in session:
            with pytest.raises(ValueError, match=r"step 1 has no completions yet; call sample\(\) before update"):
                session.update([])
            groups = session.sample()
            assert session.sample() is groups
            session.update(groups)
            with pytest.raises(ValueError, match="step 1 has its update already"):
                session.update(groups)
            break
        seen = [1]
        for step in session:
            session.update(session.sample())
            seen.append(step)
    assert seen == [1, 2, 3] == [one.step for one in session.run.metrics]
    with pytest.raises(ValueError, match="a session is entered once; make another one"):
        session.__enter__()


def test_a_held_out_set_may_have_any_name_and_is_not_trained_on(tmp_path, model):
    held = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(50, 53)]
    run = paceline.train(
        model=model, dataset=ROWS, eval_dataset={"dataset": held}, reward_funcs=variety, output_dir=tmp_path / "run",
        **SMALL,
    )  # fmt: skip
    trained = {one.prompt for step in (1, 2, 3) for one in run.rollouts(step)}
    assert not {row["question"] for row in held} & {question for prompt in trained for question in prompt.splitlines()}
    assert {one.set for one in run.evals} == {"dataset"}


def test_a_runs_directory_cannot_have_an_evaluation_run_a_models_code(tmp_path, model):
    run = paceline.train(model=model, dataset=ROWS, reward_funcs=variety, output_dir=tmp_path / "run", **SMALL)
    text = (run.path / "config.yaml").read_text().replace("trust_remote_code: false", "trust_remote_code: true")
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="asks to run the Python code that comes with"):
        paceline.evaluate(config=run.path / "config.yaml", dataset=ROWS)


def test_the_command_line_resumes_what_a_program_began(tmp_path, model):
    reward = tmp_path / "reward.py"
    reward.write_text("def variety(completions, **columns):\n    return [len(set(c)) / 10 for c in completions]\n")
    options = {"model": str(model), "dataset": "arithmetic", "dataset_size": 8, "reward_funcs": f"{reward}:variety"}
    whole = paceline.train(**options, eval_size=2, output_dir=tmp_path / "whole", **SMALL)

    def broken(groups):
        if len(broken.steps) == 2:
            raise ZeroDivisionError
        broken.steps.append(groups)
        return groups

    broken.steps = []
    with pytest.raises(ZeroDivisionError):
        by_hand(broken, **options, eval_size=2, save_steps=1, output_dir=tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert weights(paceline.TrainedRun(tmp_path / "run")) == weights(whole)


@pytest.mark.long
def test_the_example_with_an_advantage_of_its_own_learns_to_add(tmp_path):
    run = own_loop.main(output_dir=tmp_path / "run", eval_steps=0)
    assert run.evals[0].accuracy < 0.4
    assert run.evals[-1].accuracy >= 0.95


def test_an_error_of_an_option_has_its_parts(model):
    with pytest.raises(ConfigError) as refused:
        paceline.Session(model=model, dataset=ROWS, max_steps=0)
    assert (refused.value.option, refused.value.value, refused.value.rule) == ("max_steps", 0, "be at least 1")
