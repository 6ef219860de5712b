"""Law 12: the command line, the library, a loop by hand and GRPOTrainer make one run, and resume each other's: of
completions of one turn, and of conversations."""

import hashlib
import signal
from collections.abc import Callable
from pathlib import Path

import peft
import pytest

import paceline
from paceline.cli.main import main
from tests.chaos.sabotage import Trap, lay
from tests.support.forked import forked

STEPS = 4
NUMBERS = {"num_generations": 4, "learning_rate": 1e-3, "max_steps": STEPS}
TURNS = {"max_completion_length": 64, "max_turn_length": 8, "max_tool_calling_iterations": 2}
RISING = {"lr_scheduler_type": "cosine", "warmup_steps": 2}
FALLING = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}, "warmup_ratio": 0.3}
ADAPTER = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=True, lora_dropout=0.1)
KINDS: dict[str, tuple[dict, dict]] = {
    "one-turn": ({"max_completion_length": 16, **RISING}, {}),
    "adapter": ({"max_completion_length": 8, **FALLING}, {"peft_config": ADAPTER}),
    "conversations": ({**TURNS, "lr_scheduler_type": "constant"}, {"environment_factory": "guess:5"}),
}
"""Arguments of GRPOConfig and of GRPOTrainer."""


def by_command(run: Path, config: Path, *, resume: bool) -> None:
    # what the trainer began would be measured on all tasks
    few = ("--eval-size", "2", "--override", "eval_size")
    where = ["--resume", str(run), *few] if resume else ["--config", str(config), "--output-dir", str(run)]
    assert main(["train", *where]) == 0


def by_train(run: Path, config: Path, *, resume: bool) -> None:
    paceline.train(**({"resume": run} if resume else {"config": config, "output_dir": run}))


def by_hand(run: Path, config: Path, *, resume: bool) -> None:
    options = {"resume": run} if resume else {"config": config, "output_dir": run}
    with paceline.Session(**options) as session:
        for _ in session:
            groups = session.sample()
            session.update(groups)


def by_trainer(run: Path, config: Path, *, resume: bool) -> None:
    """The arguments whose options are those of `config`, which this door has written, and whose name is the kind's."""
    numbers, others = KINDS[config.stem]
    arguments = paceline.GRPOConfig(
        output_dir=str(run),
        per_device_train_batch_size=16,
        save_steps=1,
        **NUMBERS,
        **numbers,
    )
    trainer = paceline.GRPOTrainer(
        "embedded", reward_funcs="accuracy", train_dataset="arithmetic#100", args=arguments, **others
    )
    trainer.train(resume_from_checkpoint=resume)


Door = Callable[..., None]
DOORS: dict[str, Door] = {"command": by_command, "train": by_train, "hand": by_hand, "trainer": by_trainer}


def weights(run: Path) -> str:
    (file,) = (run / "final").glob("*.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def written_by_trainer(place: Path, kind: str) -> Path:
    """All options of GRPOTrainer's run without the directory, and few tasks to evaluate."""
    by_trainer(place / "run", place / f"{kind}.yaml", resume=False)
    lines = (place / "run" / "config.yaml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("output_dir:", "eval_size:"))]
    (place / f"{kind}.yaml").write_text("\n".join([*kept, "eval_size: 2"]))
    return place / f"{kind}.yaml"


@pytest.fixture(scope="module")
def configs() -> dict[str, Path]:
    """By kind of run, as tests ask for them."""
    return {}


@pytest.fixture
def config(configs, kind, tmp_path_factory) -> Path:
    if kind not in configs:
        configs[kind] = written_by_trainer(tmp_path_factory.mktemp("law-12"), kind)
    return configs[kind]


@pytest.mark.parametrize(
    "kind", ["one-turn", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "one-turn")]
)
@pytest.mark.parametrize("door", ["command", "train", "hand"])
def test_every_door_ends_with_the_same_weights_bit_for_bit(tmp_path, config, door):
    DOORS[door](tmp_path / "run", config, resume=False)
    assert weights(tmp_path / "run") == weights(config.parent / "run")
    turns = [record.get("turns_mean", 1) > 1 for record in paceline.TrainedRun(tmp_path / "run").metrics]
    assert turns == [config.stem == "conversations"] * STEPS


def killed_in_step_3(door: str, run: Path, config: Path) -> None:
    lay(Trap(function="paceline.training.loop:record_step", deed="SIGKILL", first=3))
    DOORS[door](run, config, resume=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "begun", "resumed"),
    [
        ("one-turn", "command", "train"),
        ("one-turn", "train", "hand"),
        ("one-turn", "hand", "trainer"),
        ("one-turn", "trainer", "command"),
        ("adapter", "trainer", "command"),
        ("adapter", "command", "trainer"),
        ("conversations", "command", "trainer"),
    ],
)
def test_a_run_that_was_killed_goes_on_through_any_other_door(tmp_path, config, begun, resumed):
    assert forked(killed_in_step_3, begun, tmp_path / "run", config).returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "final").exists()
    before = len(paceline.TrainedRun(tmp_path / "run").metrics)
    assert before == 2
    DOORS[resumed](tmp_path / "run", config, resume=True)
    assert len(paceline.TrainedRun(tmp_path / "run").metrics) == STEPS
    assert weights(tmp_path / "run") == weights(config.parent / "run")
