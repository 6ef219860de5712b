"""Law 12 with images: every door makes one run of rows whose images are files, and a program's own images of PIL."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

import paceline
from paceline.cli.main import main
from paceline.errors import ConfigError
from tests.support.seeing import write_seeing_model

REWARDS = """
from PIL import Image


def by_pixels(completions, image, **_):
    assert all(type(each) is Image.Image and each.mode == "RGB" for each in image)
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [float((len(text) + each.getpixel((3, 2))[0]) % 5) for text, each in zip(texts, image)]
"""
NUMBERS = {
    "num_generations": 4,
    "learning_rate": 1e-2,
    "max_steps": 2,
    "max_completion_length": 6,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 8,
    "save_steps": 2,
    "report_to": "none",
}


def drawn(number: int) -> Image.Image:
    """An image of a size and a colour of its own."""
    image = Image.new("RGB", (40, 24 + 8 * (number % 3)), (30 * number, 9, 255 - 30 * number))
    image.paste((255, 255, 0), (number, 4, number + 9, 15))
    return image


def asked(number: int, image: object) -> dict[str, object]:
    return {"question": f"What is {number}?", "answer": str(number), "image": image}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("Bilder ä")
    write_seeing_model(folder / "model", "idefics3")
    (folder / "rewards.py").write_text(REWARDS)
    for number in range(6):
        drawn(number).save(folder / f"{number}.png")
    lines = (json.dumps(asked(number, f"{number}.png")) for number in range(6))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder


def weights(run: Path) -> str:
    (file,) = (run / "final").glob("*.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def trained_by_trainer(folder: Path, run: Path, dataset: object, reward: object) -> None:
    args = paceline.GRPOConfig(output_dir=str(run), **NUMBERS)
    trainer = paceline.GRPOTrainer(str(folder / "model"), reward_funcs=reward, train_dataset=dataset, args=args)
    trainer.train()


@pytest.fixture(scope="module")
def begun(folder, tmp_path_factory) -> tuple[str, Path]:
    """Weights of the trainer's run of the rows' address, and its options without the directory."""
    run = tmp_path_factory.mktemp("trainer") / "run"
    trained_by_trainer(folder, run, str(folder / "rows.jsonl"), f"{folder / 'rewards.py'}:by_pixels")
    lines = (run / "config.yaml").read_text().splitlines()
    config = run.parent / "images.yaml"
    config.write_text("\n".join(line for line in lines if not line.startswith("output_dir:")))
    return weights(run), config


def test_the_reward_and_the_weights_hang_on_the_images(begun, folder, tmp_path):
    original = (folder / "model" / "model.safetensors").read_bytes()
    assert begun[0] != hashlib.sha256(original).hexdigest()
    (record, _) = paceline.TrainedRun(begun[1].parent / "run").metrics
    assert record["reward_mean"] > 0


def test_command_library_and_loop_by_hand_end_with_the_trainers_weights(begun, tmp_path):
    expected, config = begun
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "command")]) == 0
    paceline.train(config=config, output_dir=tmp_path / "library")
    with paceline.Session(config=config, output_dir=tmp_path / "hand") as session:
        for _ in session:
            session.update(session.sample())
    assert {weights(tmp_path / door) for door in ("command", "library", "hand")} == {expected}


def by_pixels(completions, prompts, image, **_):
    """The same as `REWARDS`, in TRL's form, which gets the prompt with its image."""
    for prompt, each in zip(prompts, image, strict=True):
        parts = prompt[-1]["content"]
        assert [part["type"] for part in parts] == ["image", "text"]
        assert parts[0]["image"].tobytes() == each.tobytes()
        assert each.tobytes() == drawn(int(parts[1]["text"][len("What is ") : -1])).tobytes()
    return [
        float((len(completion[-1]["content"]) + each.getpixel((3, 2))[0]) % 5)
        for completion, each in zip(completions, image, strict=True)
    ]


def table_of(rows: list[dict[str, object]]) -> object:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())


def test_images_of_pil_of_files_and_of_a_table_end_with_the_same_weights(folder, tmp_path):
    def rows(image_of):
        asked_rows = (asked(number, image_of(number)) for number in range(6))
        return [{"prompt": [{"role": "user", "content": row["question"]}], **row} for row in asked_rows]

    files = rows(lambda number: str(folder / f"{number}.png"))
    for name, dataset in (("pil", rows(drawn)), ("files", files), ("table", table_of(files))):
        trained_by_trainer(folder, tmp_path / name, dataset, by_pixels)
    assert len({weights(tmp_path / name) for name in ("pil", "files", "table")}) == 1


def test_a_run_is_not_resumed_with_another_pixel(begun, folder, tmp_path):
    for file in (*folder.glob("*.png"), folder / "rows.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    options = {"model": folder / "model", "dataset": tmp_path / "rows.jsonl", "output_dir": tmp_path / "run"}
    rewards = f"{folder / 'rewards.py'}:by_pixels"
    numbers = {"max_steps": 1, "save_steps": 1, "num_generations": 2, "prompts_per_step": 2}
    paceline.train(**options, reward_funcs=rewards, max_completion_length=4, **numbers)
    image = drawn(5)
    image.putpixel((0, 0), (1, 2, 3))
    image.save(tmp_path / "5.png")
    with pytest.raises(ConfigError, match=r"has other content than it had, first in row rows\.jsonl:6"):
        paceline.train(resume=tmp_path / "run", max_steps=2)
    drawn(5).save(tmp_path / "5.png")
    paceline.train(resume=tmp_path / "run", max_steps=2)


def test_a_processor_gives_the_trainer_its_tokenizer_and_may_not_disagree_with_the_model(folder, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "What is 1?"}], "image": drawn(1)}] * 2
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    image_processor = AutoImageProcessor.from_pretrained(folder / "model", backend="pil")
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor)

    def trainer() -> paceline.GRPOTrainer:
        args = paceline.GRPOConfig(output_dir=str(tmp_path / "run"), **NUMBERS)
        return paceline.GRPOTrainer(
            str(folder / "model"), reward_funcs=by_length, train_dataset=rows, args=args, processing_class=processor
        )

    assert trainer().processing_class is tokenizer
    image_processor.image_mean = [0.1, 0.2, 0.3]
    with pytest.raises(ConfigError, match=r"must have the model's own image settings, got image_mean \[0\.1, 0\.2"):
        trainer()


def by_length(completions, **_):
    return [float(len(completion[-1]["content"])) for completion in completions]
