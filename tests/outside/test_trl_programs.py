"""Scripts of TRL's kind as people write them: alone and on two ranks, stopped, resumed, and started once more."""

import json
from collections.abc import Sequence

import pytest

from tests.outside.desk import ACCELERATE, TORCHRUN, Desk

MINI_R1 = '''
    """A countdown script: arguments of its own, a split without a seed, graders that use processes."""

    import multiprocessing
    import os
    from dataclasses import dataclass

    from datasets import Dataset
    from transformers import HfArgumentParser
    from transformers.trainer_utils import get_last_checkpoint

    from paceline import GRPOConfig, GRPOTrainer


    @dataclass
    class ScriptArguments:
        rows: int = 24


    def length(text):
        return len(text) / 10


    def endless():
        while True:
            pass


    def pooled(completions, **columns):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(length, completions)


    def limited(completions, target, **columns):
        child = multiprocessing.get_context("fork").Process(target=endless)
        child.start()
        child.terminate()  # a child that a grader stops ends at once
        child.join(20)
        assert child.exitcode == -15, child.exitcode
        return map(float, target)


    def main():
        script_args, training_args = HfArgumentParser((ScriptArguments, GRPOConfig)).parse_args_into_dataclasses()
        rows = [{"prompt": f"{number} + 2 =", "target": number} for number in range(script_args.rows)]
        dataset = Dataset.from_list(rows).train_test_split(test_size=0.1)["train"]
        os.makedirs(training_args.output_dir, exist_ok=True)
        last = get_last_checkpoint(training_args.output_dir)
        trainer = GRPOTrainer("embedded", reward_funcs=[pooled, limited], args=training_args, train_dataset=dataset)
        result = trainer.train(resume_from_checkpoint=last)
        metrics = {**result.metrics, "train_samples": len(dataset)}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
        trainer.model.config.use_cache = True
        trainer.save_model(training_args.output_dir + "/model")
        training_args.distributed_state.wait_for_everyone()
        if trainer.accelerator.is_main_process:
            trainer.create_model_card({"tags": ["rl", "mini-r1"]})
        print(f"ended at {result.global_step} from {last}")


    if __name__ == "__main__":
        main()
'''
ARGUMENTS = (
    *("--per_device_train_batch_size", 4, "--num_generations", 4, "--max_completion_length", 8, "--report_to", "none"),
    *("--save_steps", 1, "--logging_steps", 1, "--output_dir", "runs/mini", "--max_steps", "STEPS"),
)

OPEN_R1 = '''
    """A recipe's script: a configuration of its own below GRPOConfig, partial reward functions, callbacks by name."""

    import functools
    import logging
    import os
    from dataclasses import dataclass, field

    from datasets import Dataset
    from transformers import TrainerCallback, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    import paceline


    @dataclass
    class GRPOConfig(paceline.GRPOConfig):
        """One with fields of the project."""

        benchmarks: list[str] = field(default_factory=list, metadata={"help": "To run after training."})
        callbacks: list[str] = field(default_factory=list)
        system_prompt: str | None = field(default=None)
        wandb_project: str | None = field(default=None)


    def cosine(completions, low, **columns):
        return [low + len(one[0]["content"]) / 100 for one in completions]


    class Note(TrainerCallback):
        def on_save(self, args, state, control, **given):
            batches = len(given["train_dataloader"])
            print("saved", state.global_step, "of", batches, "batches for", args.system_prompt)


    def main():
        args = GRPOConfig(
            output_dir="runs/open",
            system_prompt="Think first.",
            callbacks=["note"],
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            save_steps=1,
            max_steps=int(os.environ["STEPS"]),
            report_to="none",
        )
        set_seed(args.seed)
        logging.getLogger().setLevel(args.get_process_log_level())
        last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
        rows = [
            {"prompt": [{"role": "system", "content": args.system_prompt}, {"role": "user", "content": f"{n} + 1 ="}]}
            for n in range(8)
        ]
        trainer = paceline.GRPOTrainer(
            model="embedded",
            reward_funcs=[functools.partial(cosine, low=0.1)],
            args=args,
            train_dataset=Dataset.from_list(rows),
            callbacks=[Note()],
        )
        print(f"ended at {trainer.train(resume_from_checkpoint=last).global_step} from {last}")
        trainer.save_model(args.output_dir + "/model")
        if trainer.accelerator.is_main_process:
            trainer.model.config.save_pretrained(args.output_dir + "/model")


    if __name__ == "__main__":
        main()
'''

AGENT = '''
    """An agent with a database: connections of the script, a limit of time by a signal, an environment of its own."""

    import os
    import signal
    import sqlite3

    import torch
    from datasets import Dataset
    from transformers.trainer_utils import get_last_checkpoint

    from paceline import GRPOConfig, GRPOTrainer

    connection = sqlite3.connect(":memory:")
    connection.execute("create table facts (name text, value integer)")


    class timeout:
        def __init__(self, seconds):
            self.seconds = seconds

        def __enter__(self):
            signal.signal(signal.SIGALRM, self.late)
            signal.alarm(self.seconds)

        def __exit__(self, *_):
            signal.alarm(0)

        def late(self, *_):
            raise TimeoutError


    class Database:
        def reset(self, **row):
            with timeout(5):
                connection.execute("insert into facts values (?, ?)", ("begun", 1))

        def get_reward(self) -> float:
            with timeout(5):
                return float(connection.execute("select count(*) from facts").fetchone()[0])


    rows = [{"prompt": [{"role": "user", "content": "How many?"}]}] * 4
    trainer = GRPOTrainer(
        "embedded",
        environment_factory=Database,
        args=GRPOConfig(
            output_dir="runs/agent", per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
            max_steps=int(os.environ["STEPS"]), save_steps=1, report_to="none",
        ),
        train_dataset=Dataset.from_list(rows),
    )
    last = get_last_checkpoint("runs/agent") if os.path.isdir("runs/agent") else None
    begun = 0 if last is None else int(last.split("-")[-1])
    ended = trainer.train(resume_from_checkpoint=last).global_step
    trainer.args.distributed_state.wait_for_everyone()
    (count,) = connection.execute("select count(*) from facts").fetchone()
    counts = trainer.accelerator.gather(torch.tensor([count])).tolist()
    # each rank plays four conversations in each step
    trainer.accelerator.print("ended at", ended, "from", last, "resets as due", set(counts) == {4 * (ended - begun)})
    trainer.accelerator.print("reward", trainer.state.log_history[0]["reward"] > 0)
'''


LAUNCHERS = pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["alone", "torchrun"])


def stopped_and_begun_twice_more(desk: Desk, program: Sequence[object], run: str) -> tuple[int, str, str]:
    """Press Ctrl-C after two checkpoints, and start the program again, twice, for one more step each time.

    Returns the last checkpoint of the first start, and what the others said. They learn by STEPS when to end.
    """

    def words(steps: int) -> list[object]:
        return [steps if word == "STEPS" else word for word in program]

    place = desk.path / run
    stopped = desk.interrupt(*words(40), env={"STEPS": "40"}, when=(place / "checkpoint-2").exists)
    assert stopped.returncode != 0, stopped.stdout
    reached = max(int(one.name.split("-")[1]) for one in place.glob("checkpoint-*"))
    assert 2 <= reached < 40
    said = []
    for more in (1, 2):
        done = desk.python(*words(reached + more), env={"STEPS": str(reached + more)})
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"ended at {reached + more} from {run}/checkpoint-{reached + more - 1}" in done.stdout
        said.append(done.stdout)
    return reached, *said


@pytest.mark.long
@LAUNCHERS
def test_a_countdown_script_is_stopped_resumed_and_started_a_third_time(desk: Desk, launcher: tuple[str, ...]):
    desk.write("countdown.py", MINI_R1)

    _, resumed, _ = stopped_and_begun_twice_more(desk, (*launcher, "countdown.py", *ARGUMENTS), "runs/mini")

    run = desk.path / "runs/mini"
    assert "from here on train_dataset has other content than it had" in resumed
    assert json.loads((run / "train_results.json").read_text())["train_samples"] == 21
    assert {"model", "trainer_state.json"} <= {place.name for place in run.iterdir()}
    assert "mini-r1" in (run / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
@LAUNCHERS
def test_a_recipe_with_a_configuration_below_ours_is_stopped_resumed_and_started_a_third_time(
    desk: Desk, launcher: tuple[str, ...]
):
    desk.write("grpo.py", OPEN_R1)

    reached, resumed, _ = stopped_and_begun_twice_more(desk, (*launcher, "grpo.py"), "runs/open")

    assert f"saved {reached + 1} of {4 if launcher else 8} batches for Think first." in resumed
    assert (desk.path / "runs/open/model/config.json").is_file()


@pytest.mark.long
@LAUNCHERS
def test_an_agent_with_signals_and_a_connection_of_the_script_is_stopped_resumed_and_started_a_third_time(
    desk: Desk, launcher: tuple[str, ...]
):
    desk.write("agent.py", AGENT)

    _, *said = stopped_and_begun_twice_more(desk, (*launcher, "agent.py"), "runs/agent")

    assert all("resets as due True\nreward True" in one for one in said)


@pytest.mark.long
def test_a_recipe_trains_under_accelerate(desk: Desk):
    desk.write("grpo.py", OPEN_R1)

    done = desk.python(*ACCELERATE, "grpo.py", env={"STEPS": "1"})

    assert done.returncode == 0, done.stdout + done.stderr
    assert "saved 1 of 4 batches for Think first." in done.stdout
