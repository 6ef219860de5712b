"""What lies around the loop: what ends a completion, which tasks a step takes, who may ask for what, at which rate."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.trainer import GRPOTrainer
from paceline.config.building import build_config
from paceline.config.sections import LoopConfig, ModelConfig
from paceline.engines import Request, Sampling
from paceline.models.loading import load_model
from paceline.models.pretrained import end_token_ids, load_tokenizer
from paceline.training.assembly import make_engine
from paceline.training.backend import one_process
from paceline.training.observing import Timetable
from paceline.training.rollouts.sampler import TaskSampler, prompts_of_step
from paceline.training.run import Requests
from paceline.training.setup.preparation import prepare
from paceline.training.trainer import SteppedRate
from tests.support.cluster_here import sampler_of
from tests.support.scripted import task
from tests.support.tiny import tiny_model, tiny_tokenizer

TASKS = tuple(task(str(number)) for number in range(3))


@pytest.mark.parametrize(
    ("tokenizer", "generation", "config", "ends"),
    [
        (258, 258, 258, {258}),
        (258, 7, None, {258, 7}),  # a fine-tuning changed the tokenizer alone
        (None, 7, [8, 9], {7, 8, 9}),
        (258, [7, 8], 9, {7, 8, 9, 258}),
        (None, None, 9, {9}),
        (0, None, None, {0}),  # a token like any other
        (258, -1, [9, -1], {258, 9}),  # -1 stands for none
        (None, None, None, set()),
    ],
)
def test_whatever_tokenizer_generation_settings_or_configuration_name_ends(tokenizer, generation, config, ends):
    model, tokens = tiny_model(), tiny_tokenizer()
    tokens.eos_token = None if tokenizer is None else tokens.convert_ids_to_tokens(tokenizer)
    model.generation_config, model.config.eos_token_id = GenerationConfig(eos_token_id=generation), config
    assert end_token_ids(tokens, model.generation_config, model.config) == ends


@pytest.mark.long
def test_every_door_ends_completions_at_all_end_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_model().save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")  # its end token is 258
    for file, ends in (("generation_config.json", list(range(40))), ("config.json", list(range(40, 80)))):
        place = Path("model", file)
        place.write_text(json.dumps({**json.loads(place.read_text()), "eos_token_id": ends}))
    Path("rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    config = build_config({"model": "./model", "dataset": "rows.jsonl", "max_completion_length": "30"})
    args = GRPOConfig(output_dir="run", max_completion_length=30, report_to="none")
    policy = load_model(ModelConfig(model="./model"))
    engines = {
        "train": one_process(config, prepare(config)).engine,
        "eval": make_engine(config, policy, load_tokenizer(config.model)),
        "cluster": sampler_of(config).engine,
        "api": GRPOTrainer(
            "./model", lambda completions, **_: [0.0] * len(completions), args, [{"prompt": "1+1="}]
        )._job.backend.engine,
    }
    for door, engine in engines.items():
        request = Request(prompt_ids=tuple(b"1+1="), keys=tuple(range(60)))
        (group,) = engine.generate([request], Sampling(max_completion_length=30))
        assert all(one.finish_reason == "stop" for one in group), door
        last = {one.token_ids[-1] for one in group}
        assert last <= {*range(80), 258}, door
        assert min(last) < 40 <= max(last - {258}), door


def test_a_feed_goes_on_where_it_stood_and_counts_how_often_a_task_came():
    task_sampler = TaskSampler(tasks=TASKS, seed=0, shuffle=False, position=1)
    assert [(one.task_id, times) for one, times in task_sampler.take(4)] == [("1", 0), ("2", 0), ("0", 1), ("1", 1)]
    assert task_sampler.position == 5


def test_the_last_step_of_a_run_in_epochs_takes_what_is_left_however_many_refills_there_were():
    loop = LoopConfig(prompts_per_step=4, num_epochs=1.0)
    assert [prompts_of_step(number, loop, num_tasks=10) for number in (1, 2, 3)] == [4, 4, 2]
    assert prompts_of_step(3, LoopConfig(prompts_per_step=4, max_steps=3), num_tasks=10) == 4


def test_wishes_of_several_moments_are_granted_together():
    assert Requests(save=True) | Requests(stop=True) == Requests(save=True, stop=True)


def test_the_timetable_evaluates_at_the_start_every_so_often_and_at_the_end():
    timetable = Timetable(eval_steps=2, save_steps=3, total_steps=5)
    assert timetable.at_start(0) == Requests(evaluate=True)
    assert timetable.at_start(2) == Requests()
    requests = [timetable.after(number) for number in (1, 2, 3, 4, 5)]
    assert [one.evaluate for one in requests] == [False, True, False, True, True]
    assert [one.save for one in requests] == [False, False, True, False, False]


@pytest.mark.parametrize("kind", ["closed form", "step by step"])
def test_a_stepped_rate_can_be_set_to_any_number_of_updates(kind):
    def make() -> SteppedRate:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
        schedulers = torch.optim.lr_scheduler
        by_kind = {
            "closed form": lambda: schedulers.LambdaLR(optimizer, lambda updates: 1 / (1 + updates)),
            "step by step": lambda: schedulers.ExponentialLR(optimizer, 0.5),
        }
        return SteppedRate(optimizer, by_kind[kind]())

    went = make()
    rates = []
    for _ in range(5):
        rates.append(went.current)
        went.advance(1)
    for updates in (3, 0, 4):
        went.go_to(updates)
        assert went.current == rates[updates]
