"""Wrong inputs, one by one: exit status 2, one sentence that names what and where, no traceback, nothing written."""

import json

import pytest

from paceline.cli.main import main
from tests.tiny import tiny_model, tiny_tokenizer

ROW = '{"question": "What is 1 + 1?", "answer": "2"}\n'
TRAIN = "train --model model --dataset rows.jsonl --max-completion-length 100 "


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch, model):
    """A directory with a model, good and bad datasets, configuration files, reward files and an earlier run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model, target_is_directory=True)
    files = {
        "rows.jsonl": ROW * 4,
        "broken.jsonl": ROW * 2 + '{"question": \n',
        "columns.jsonl": '{"topic": "sums", "level": 3}\n',
        "empty_list.json": "[]",
        "no_prompt.jsonl": '{"prompt": "1+1="}\n{"text": "2+2="}\n',
        "empty_prompt.jsonl": '{"prompt": "1+1="}\n{"prompt": ""}\n',
        "null_prompt.jsonl": '{"prompt": null}\n',
        "no_messages.jsonl": '{"prompt": []}\n',
        "null_content.jsonl": '{"prompt": [{"role": "user", "content": null}]}\n',
        "nan_answer.jsonl": '{"question": "What is 1 + 1?", "answer": NaN}\n',
        "long.jsonl": json.dumps({"prompt": "a " * 300, "answer": "2"}) + "\n",
        "no_answer.jsonl": '{"prompt": "1+1="}\n',
        "null.jsonl": ROW + '{"question": null, "answer": "2"}\n',
        "empty.jsonl": "",
        "a_file": "x",
        "folder/notes.txt": "x",
        "earlier/config.yaml": "model: model\ndataset: rows.jsonl\n",
        "earlier/metrics.jsonl": '{"step": 1}\n',
        "unknown.yaml": "model: model\nlerning_rate: 1\n",
        "bad.yaml": "model:\n\t- x\n",
        "twice.yaml": "seed: 1\nmodel: model\nseed: 2\n",
        "object.yaml": "model: !!python/object/apply:os.system ['touch canary']\n",
        "value.yaml": "model: model\ndataset: rows.jsonl\nlearning_rate: fast\n",
        "reward.py": "def paid(*, completions, **columns):\n    return [0.0] * len(completions)\n"
        "def tested(completions, tests):\n    return [0.0] * len(completions)\n",
        "torn.py": "def paid(:\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9\n")
    return tmp_path


CASES = {
    "unknown command": ("trian", ["trian", "did you mean train?"]),
    "unknown option": (TRAIN + "--lerning-rate 1e-5", ["--lerning-rate", "did you mean --learning-rate?"]),
    "option without a value": (TRAIN + "--learning-rate", ["--learning-rate needs a value"]),
    "value without an option": (TRAIN + "fast", ["'fast'"]),
    "not a whole number": (TRAIN + "--max-steps 3.5", ["--max-steps", "'3.5'"]),
    "not a number": (TRAIN + "--learning-rate 1e-5x", ["--learning-rate", "'1e-5x'"]),
    "not finite": (TRAIN + "--learning-rate nan", ["--learning-rate", "'nan'"]),
    "clip bound": (TRAIN + "--clip-eps-low 1.5", ["--clip-eps-low", "1.5", "[0, 1)"]),
    "group of one": (TRAIN + "--num-generations 1", ["--num-generations", "at least 2", "got 1"]),
    "temperature 0": (TRAIN + "--temperature 0", ["--temperature", "above 0", "--eval-temperature"]),
    "negative rate": (TRAIN + "--learning-rate -1", ["--learning-rate", "at least 0", "-1"]),
    "no completion": (TRAIN + "--max-completion-length 0", ["--max-completion-length", "at least 1", "got 0"]),
    "top_p": (TRAIN + "--top_p 1.5", ["--top-p", "(0, 1]", "1.5"]),
    "negative beta": (TRAIN + "--beta=-1", ["--beta", "at least 0", "-1"]),
    "no prompts": (TRAIN + "--prompts-per-step 0", ["--prompts-per-step", "at least 1", "got 0"]),
    "bad choice": (TRAIN + "--lr-schedule cosin", ["--lr-schedule", "'cosin'", "did you mean cosine?"]),
    "bad switch": (TRAIN + "--shuffle maybe", ["--shuffle", "'maybe'"]),
    "weights without functions": (
        TRAIN + "--reward-weights 1 2",
        ["--reward-weights", "(1.0, 2.0)", "one weight for each of the 1 rewards (accuracy)"],
    ),
    "warm-up past the end": (TRAIN + "--warmup-steps 9 --max-steps 3", ["--warmup-steps", "--max-steps (3)"]),
    "two system prompts": (TRAIN + "--system-prompt a --system-prompt-file b", ["--system-prompt-file"]),
    "empty output dir": (TRAIN + "--output-dir=", ["--output-dir", "empty"]),
    "dataset left out": ("train --model model", ["--dataset"]),
    "option of another command": ("eval --model model --dataset rows.jsonl --beta 1", ["--beta", "eval"]),
    "missing configuration": ("train --config nowhere.yaml", ["--config nowhere.yaml", "No such file"]),
    "configuration is a directory": ("train --config folder", ["--config folder", "directory"]),
    "configuration in latin-1": ("train --config latin.yaml", ["--config latin.yaml", "UTF-8"]),
    "unknown key": ("train --config unknown.yaml", ["unknown.yaml line 2", "--learning-rate?"]),
    "bad yaml": ("train --config bad.yaml", ["bad.yaml line 2", "spaces"]),
    "duplicate key": ("train --config twice.yaml", ["twice.yaml line 3", "seed"]),
    "object in yaml": ("train --config object.yaml", ["object.yaml line 1", "!!python/object/apply:os.system"]),
    "wrong value in yaml": ("train --config value.yaml", ["value.yaml line 3", "--learning-rate", "'fast'"]),
    "resume of nothing": ("train --resume nowhere", ["--resume nowhere", "config.yaml"]),
    "resume of no run": ("train --resume folder", ["--resume folder", "config.yaml"]),
    "resume with other options": ("train --resume earlier --beta 1", ["--beta is 1.0 and was 0.0", "--override beta"]),
    "resume with what cannot change": (
        "train --resume earlier --lora-rank 4",
        ["--lora-rank is 4 and was 0", "cannot change"],
    ),
    "override of nothing": (TRAIN + "--override beta", ["--override", "there is no --resume"]),
    "override of no option": ("train --resume earlier --override betta", ["--betta", "did you mean --beta?"]),
    "resume elsewhere": (
        "train --resume earlier --output-dir b",
        ["--output-dir b", "--resume earlier", "leave it out"],
    ),
    "report of nothing": ("report", ["report", "run directory"]),
    "report of no run": ("report folder", ["folder", "run directory"]),
    "missing dataset": ("train --model model --dataset row.jsonl", ["row.jsonl", "rows.jsonl"]),
    "missing held-out set": (TRAIN + "--eval-dataset row.jsonl", ["row.jsonl", "rows.jsonl"]),
    "bad JSON line": ("train --model model --dataset broken.jsonl", ["broken.jsonl", "3"]),
    "unknown columns": (TRAIN + "--dataset columns.jsonl", ["columns.jsonl", "topic", "--prompt-column"]),
    "no such column": (TRAIN + "--prompt-column text", ["--prompt-column", "text", "question"]),
    "empty prompt cell": (TRAIN + "--dataset null.jsonl", ["null.jsonl:2", "question"]),
    "no prompt in a row": (
        TRAIN + "--dataset no_prompt.jsonl",
        ["no_prompt.jsonl:2", "the columns text;", "--prompt-column"],
    ),
    "empty prompt": (TRAIN + "--dataset empty_prompt.jsonl", ["empty_prompt.jsonl:2", "not empty, got ''", "mend"]),
    "prompt of null": (TRAIN + "--dataset null_prompt.jsonl", ["null_prompt.jsonl:1", "got None", "mend the row"]),
    "prompt without messages": (TRAIN + "--dataset no_messages.jsonl", ["no_messages.jsonl:1", "an empty list"]),
    "message of null": (TRAIN + "--dataset null_content.jsonl", ["null_content.jsonl:1", "message 1", "got None"]),
    "answer that is no number": (TRAIN + "--dataset nan_answer.jsonl", ["nan_answer.jsonl:1", "'answer' holds nan"]),
    "no gold answers": (
        TRAIN + "--dataset no_answer.jsonl",
        ["'accuracy' compares with gold answers", "--answer-column"],
    ),
    "empty list": ("train --model model --dataset empty_list.json", ["empty_list.json", "no rows"]),
    "empty file": ("train --model model --dataset empty.jsonl", ["empty.jsonl"]),
    "unknown generator": ("train --model model --dataset reasoning_gym:sums", ["reasoning_gym:sums"]),
    "unknown split": ("train --model model --dataset arithmetic --dataset-split dev", ["arithmetic", "'dev'"]),
    "prompt too long": (TRAIN + "--max-prompt-length 5", ["rows.jsonl:1", "--max-prompt-length", "5"]),
    "prompt past the model": (
        TRAIN + "--dataset long.jsonl --max-prompt-length 700",
        ["row long.jsonl:1", "601", "512 positions", "--long-prompts drop"],
    ),
    "missing model": ("train --model ./nowhere --dataset rows.jsonl", ["--model ./nowhere"]),
    "model without config": ("train --model folder --dataset rows.jsonl", ["--model folder", "config.json"]),
    "completion past the model": (TRAIN + "--max-completion-length 600", ["--max-completion-length", "600", "512"]),
    "output dir is a file": (TRAIN + "--max-completion-length 64 --output-dir a_file", ["--output-dir a_file"]),
    "output dir holds a run": (
        TRAIN + "--max-completion-length 64 --output-dir earlier",
        ["--output-dir earlier", "--resume"],
    ),
    "missing system prompt": (TRAIN + "--system-prompt-file none.txt", ["--system-prompt-file", "none.txt"]),
    "unknown reward": (TRAIN + "--reward-funcs acuracy", ["acuracy", "accuracy"]),
    "unknown eval reward": (TRAIN + "--eval-reward-func acuracy", ["acuracy", "accuracy"]),
    "missing reward file": (TRAIN + "--reward-funcs nowhere.py:paid", ["nowhere.py"]),
    "missing reward function": (TRAIN + "--reward-funcs reward.py:payd", ["reward.py", "payd"]),
    "reward function of another dataset": (TRAIN + "--reward-funcs reward.py:tested", ["reward.py:tested", "'tests'"]),
    "missing reward model": (TRAIN + "--reward-models ./modle", ["--reward-models ./modle", "'model'"]),
    "reward model without config": (TRAIN + "--reward-models folder", ["--reward-models folder", "config.json"]),
    "language model as a reward model": (
        TRAIN + "--reward-models model",
        ["--reward-models model", "Qwen3ForCausalLM", "score head"],
    ),
    "weights of functions and models": (
        TRAIN + "--reward-funcs accuracy --reward-models rm --reward-weights 1",
        ["--reward-weights", "2 rewards (accuracy, rm)"],
    ),
    "reward file with a slip": (TRAIN + "--reward-funcs torn.py:paid", ["torn.py"]),
}


@pytest.mark.parametrize(("line", "named"), CASES.values(), ids=CASES)
def test_a_wrong_input_is_one_sentence_and_leaves_nothing_behind(line, named, here, capsys):
    before = sorted(here.rglob("*"))
    status = main(line.split())
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("paceline: ")
    assert error.count("\n") == 1
    for word in named:
        assert word in error
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


def test_a_canary_in_a_configuration_never_runs(here, capsys):
    main(["train", "--config", "object.yaml"])
    assert not (here / "canary").exists()


def test_a_model_configuration_that_is_no_json_object_is_named(here, capsys):
    broken = here / "broken_model"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps([1]))
    (broken / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert main(["plan", "--model", "broken_model", "--dataset", "rows.jsonl"]) == 2
    assert "config.json is not a JSON object" in capsys.readouterr().err
