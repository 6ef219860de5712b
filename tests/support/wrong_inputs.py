"""Command lines with something wrong in them, the words that the refusal of each must have, and the files they name."""

import gzip
import json
import shutil
from pathlib import Path

from tests.support.tiny import tiny_model, tiny_tokenizer

ROW = '{"question": "What is 1 + 1?", "answer": "2"}\n'
DOT = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")
"""A GIF of one black pixel."""
TRAIN = "train --model model --dataset rows.jsonl --max-completion-length 100 "


def make_model(folder: Path) -> None:
    """The model that the other files are of."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def furnish(place: Path, model: Path) -> None:
    """A directory with a model, good and bad datasets, configuration files, reward files and an earlier run."""
    (place / "model").symlink_to(model, target_is_directory=True)
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
        "images.jsonl": ROW + '{"question": "How many?", "answer": "2", "image": "dot.gif"}\n',
        "lost_image.jsonl": ROW + '{"question": "How many?", "answer": "2", "image": "two.png"}\n',
        "fetched_image.jsonl": '{"question": "How many?", "answer": "2", "image": "http://127.0.0.1:9/a.png"}\n',
        "drawing.jsonl": '{"question": "How many?", "answer": "2", "image": "drawing.svg"}\n',
        "two_images.jsonl": '{"question": "<image>?", "answer": "2", "images": ["dot.gif", "dot.gif"]}\n',
        "two_marks.jsonl": '{"question": "<image> or <image>?", "answer": "2", "images": ["dot.gif"]}\n',
        "video.jsonl": '{"question": "How long?", "answer": "2", "videos": ["a.mp4"]}\n',
        "drawing.svg": "<svg/>",
        "null.jsonl": ROW + '{"question": null, "answer": "2"}\n',
        "empty.jsonl": "",
        "a_file": "x",
        "folder/notes.txt": "x",
        "earlier/config.yaml": "model: model\ndataset: rows.jsonl\n",
        "earlier/metrics.jsonl": '{"step": 1}\n',
        "torn_run/config.yaml": "model: {name: x}\n",
        "unsure/config.yaml": "model: model\ndataset: rows.jsonl\n",
        "unsure/identity.json": "{",
        "damaged/config.yaml": "model: model\ndataset: rows.jsonl\n",
        "damaged/checkpoints/step-000001/manifest.json": "{}",
        **{
            f"{run}/.lock": "process 1 on host here\n"
            for run in ("earlier", "torn_run", "unsure", "damaged", "foreign")
        },
        "foreign/config.yaml": "model: own_code\ndataset: rows.jsonl\ntrust_remote_code: true\n",
        "mine/config.yaml": "# my notes\nmodel: model\ndataset: rows.jsonl\n",
        "mine/evals/mine.py": "",
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
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "latin.yaml").write_bytes(b"model: \xe9\n")
    (place / "dot.gif").write_bytes(DOT)
    for name, content in CONTENTS.items():
        (place / name).write_bytes(content)
    for name, change in MODELS.items():
        change(Path(shutil.copytree(model, place / name)))


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def few_tokens(folder):
    model = tiny_model()
    model.resize_token_embeddings(90)
    model.save_pretrained(folder)


def configured(**changes):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


CONTENTS = {
    "latin.jsonl": b'{"question": "caf\xe9?", "answer": "2"}\n',
    "nul.jsonl": b'{"question": "a\x00b", "answer": "2"}\n',
    "cut.jsonl.gz": gzip.compress(ROW.encode() * 400)[:40],
    "cut.parquet": b"PAR1",
    "rows.pkl": b"\x80\x04.",
    "number.jsonl": b'{"prompt": 5, "answer": "2"}\n',
    "list.jsonl": b"[1, 2]\n",
    "tests_text.jsonl": b'{"prompt": "Print 1.", "test_cases": "no JSON"}\n',
    "tests_short.jsonl": b'{"prompt": "Print 1.", "test_cases": {"inputs": ["1", "2"], "outputs": ["1"]}}\n',
    "list.yaml": b"- model\n",
    "nested.yaml": b"model: {name: x}\n",
    "system.txt": b"\xff\xfe",
    "returns.py": b"def one(completions, **columns):\n    return [1.0]\n"
    b"def words(completions, **columns):\n    return list(completions)\n"
    b"def nothing(completions, **columns):\n    pass\n",
}
MODELS = {
    "cut_model": cut,
    "pickled_model": only_pickle,
    "broken_config": lambda folder: (folder / "config.json").write_text("{"),
    "unknown_kind": configured(model_type="no_such_type"),
    "own_code": configured(model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
    "other_shapes": configured(hidden_size=64),
    "few_tokens": few_tokens,
    "fp8": configured(quantization_config={"quant_method": "fp8"}),
    "four_bits": configured(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "eight_bits": configured(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "seeing": configured(model_type="clip", architectures=["CLIPModel"]),
    "broken_tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "no_template": lambda folder: (folder / "chat_template.jinja").unlink(),
}


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
    "empty output dir": (TRAIN + "--output-dir=", ["--output-dir", "empty"]),
    "dataset left out": (
        "train --model model",
        ["missing --dataset; give it as a flag, for example --dataset train.jsonl"],
    ),
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
    "output dir holds files of the user's own": (
        TRAIN + "--max-completion-length 64 --output-dir mine",
        ["--output-dir mine", "config.yaml, evals, which a run would overwrite"],
    ),
    "resume of a configuration of the user's own": ("train --resume mine", ["--resume mine", "did not write"]),
    **{
        f"code of a foreign run's model, {line.split()[0]}": (line, ["foreign/config.yaml", "say --trust-remote-code"])
        for line in (
            "train --resume foreign",
            "replay foreign --step 1",
            "export foreign",
            "eval --config foreign/config.yaml --eval-dataset rows.jsonl",
        )
    },
    "missing system prompt": (TRAIN + "--system-prompt file:none.txt", ["--system-prompt", "none.txt"]),
    "unknown reward": (TRAIN + "--reward-funcs acuracy", ["acuracy", "accuracy"]),
    "unknown eval reward": (TRAIN + "--eval-reward-func acuracy", ["--eval-reward-func", "acuracy", "accuracy"]),
    "file without a function": (TRAIN + "--reward-funcs reward.py", ["--reward-funcs", "as reward.py:function"]),
    "another tool's flag": (TRAIN + "--per_device_train_batch_size 4", ["paceline translate -- COMMAND"]),
    "replay under no preset": ("replay earlier --step 1 --preset gpro", ["--preset", "'gpro'", "grpo"]),
    "missing reward file": (TRAIN + "--reward-funcs nowhere.py:paid", ["nowhere.py"]),
    "missing reward function": (TRAIN + "--reward-funcs reward.py:payd", ["reward.py", "payd"]),
    "reward function of another dataset": (TRAIN + "--reward-funcs reward.py:tested", ["reward.py:tested", "'tests'"]),
    "missing reward model": (TRAIN + "--reward-funcs model:./modle", ["--reward-funcs model:./modle", "'model'"]),
    "reward model without config": (
        TRAIN + "--reward-funcs model:folder",
        ["--reward-funcs model:folder", "config.json"],
    ),
    "language model as a reward model": (
        TRAIN + "--reward-funcs model:model",
        ["--reward-funcs model:model", "Qwen3ForCausalLM", "score head"],
    ),
    "weights of functions and models": (
        TRAIN + "--reward-funcs accuracy model:rm --reward-weights 1",
        ["--reward-weights", "2 rewards (accuracy, rm)"],
    ),
    "rate of one": (TRAIN + "--learning-rate 2", ["--learning-rate", "below 1", "2.0"]),
    "infinite rate": (TRAIN + "--learning-rate inf", ["--learning-rate", "finite", "'inf'"]),
    "upper clip bound": (TRAIN + "--clip-eps-high=-1", ["--clip-eps-high", "at least 0", "-1"]),
    "parts that do not divide": (
        TRAIN + "--prompts-per-step 3 --num-generations 2 --num-minibatches 4",
        ["--num-minibatches", "divide the 6", "got 4", "3 and 6"],
    ),
    "unknown preset": (TRAIN + "--preset gpro", ["--preset", "'gpro'", "grpo"]),
    "unknown average": (TRAIN + "--average tokens", ["--average", "'tokens'", "did you mean token?"]),
    "unknown device": (TRAIN + "--device cuda:7", ["--device", "'cuda:7'", "did you mean cuda?"]),
    "share of a device": (TRAIN + "--vllm-memory 1.5", ["--vllm-memory", "(0, 1)", "1.5"]),
    "foreign settings": (TRAIN + "--deepspeed nowhere.json", ["--deepspeed", "zero3", "'nowhere.json'"]),
    "more processes than one": (TRAIN + "--tensor-parallel 2", ["--tensor-parallel 2", "torchrun --nproc-per-node 2"]),
    "no epoch": (TRAIN + "--num-epochs 0", ["--num-epochs", "above 0", "got 0"]),
    "no checkpoint kept": (TRAIN + "--save-total-limit 0", ["--save-total-limit", "at least 1", "got 0"]),
    "negative seed": (TRAIN + "--seed=-1", ["--seed", "[0, 2^63)", "-1"]),
    "range the wrong way": (TRAIN + "--filter-range 1 0", ["--filter-range", "the lower first", "(1.0, 0.0)"]),
    "unknown tracker": (TRAIN + "--report-to wanbd", ["--report-to", "'wanbd'", "'wandb'"]),
    "system prompt in latin-1": (TRAIN + "--system-prompt file:system.txt", ["--system-prompt", "UTF-8"]),
    "many greedy completions": (TRAIN + "--eval-generations 4", ["--eval-generations", "--eval-temperature", "got 4"]),
    "function twice": (TRAIN + "--reward-funcs accuracy accuracy", ["--reward-funcs", "once", "accuracy"]),
    "parameter of a function": (TRAIN + "--reward-funcs cosine(min_wrong=x)", ["min_wrong", "a number", "'x'"]),
    "no time": (TRAIN + "--reward-timeout 0", ["--reward-timeout", "above 0", "got 0"]),
    "judge by ftp": (TRAIN + "--sandbox ftp://x", ["--sandbox", "https://", "'ftp://x'"]),
    "programs without tests": (TRAIN + "--reward-funcs code", ["'code'", "4 tasks", "docs/rewards.md"]),
    "one number for all": (TRAIN + "--reward-funcs returns.py:one", ["returns.py:one", "1 items", "4 numbers"]),
    "words for numbers": (TRAIN + "--reward-funcs returns.py:words", ["returns.py:words", "of type str"]),
    "nothing for numbers": (TRAIN + "--reward-funcs returns.py:nothing", ["returns.py:nothing", "None"]),
    "cluster without a port": (TRAIN + "--cluster here", ["--cluster", "HOST:PORT", "'here'"]),
    "cluster of nobody": (
        TRAIN + "--cluster 127.0.0.1:1",
        ["--cluster", "'127.0.0.1:1' (Connection refused)", "ray start --head"],
    ),
    "rows in latin-1": (TRAIN + "--dataset latin.jsonl", ["latin.jsonl, line 1", "UTF-8", "byte 18"]),
    "NUL in a row": (TRAIN + "--dataset nul.jsonl", ["nul.jsonl, line 1", "control character"]),
    "half of an archive": (TRAIN + "--dataset cut.jsonl.gz", ["--dataset cut.jsonl.gz", "ended before"]),
    "half of a parquet file": (TRAIN + "--dataset cut.parquet", ["cut.parquet", "parquet"]),
    "pickled rows": (TRAIN + "--dataset rows.pkl", ["--dataset rows.pkl", ".jsonl"]),
    "prompt of a number": (TRAIN + "--dataset number.jsonl", ["number.jsonl:1", "got int"]),
    "row of a list": (TRAIN + "--dataset list.jsonl", ["list.jsonl, line 1", "JSON list"]),
    "tests that are no JSON": (
        TRAIN + "--dataset tests_text.jsonl --reward-funcs code",
        ["tests_text.jsonl:1", "test_cases", "--on-bad-row skip"],
    ),
    "test without an output": (
        TRAIN + "--dataset tests_short.jsonl --reward-funcs code",
        ["tests_short.jsonl:1", "2 inputs and 1 outputs"],
    ),
    "no row used": (TRAIN + "--dataset-size 0", ["--dataset-size", "at least 1", "got 0"]),
    "configuration of a list": ("train --config list.yaml", ["list.yaml", "option: value", "list"]),
    "configuration in levels": ("train --config nested.yaml", ["nested.yaml line 1", "nested mapping"]),
    "half of a model": (TRAIN + "--model cut_model", ["--model cut_model", "get its files again"]),
    "pickled weights": (TRAIN + "--model pickled_model", ["--model pickled_model", "pickle is not loaded"]),
    "model configuration": (TRAIN + "--model broken_config", ["--model broken_config", "config.json"]),
    "unknown kind of model": (TRAIN + "--model unknown_kind", ["--model unknown_kind", "no_such_type"]),
    "model with code of its own": (TRAIN + "--model own_code", ["--model own_code", "--trust-remote-code"]),
    "weights of other shapes": (TRAIN + "--model other_shapes", ["--model other_shapes", "config.json", "one place"]),
    "quantised weights": (TRAIN + "--model four_bits", ["--model four_bits", "4 bits), which cannot", "--lora-rank"]),
    "quantised weights under an adapter": (
        TRAIN + "--model fp8 --lora-rank 4",
        ["--model fp8", "(fp8), which cannot be trained", "weights in full", "4 bits"],
    ),
    "adapter on 8 bits": (TRAIN + "--model eight_bits --lora-rank 4", ["--model eight_bits", "8 bits), which cannot"]),
    "merged into 4 bits": (
        TRAIN + "--model four_bits --lora-rank 4 --merge-lora true",
        ["--merge-lora", "be false with quantised weights"],
    ),
    "evaluation of quantised weights": (
        "eval --model fp8 --dataset rows.jsonl",
        ["--model fp8", "(fp8), which cannot be trained"],
    ),
    "plan of quantised weights": ("plan --model fp8 --dataset rows.jsonl", ["--model fp8", "(fp8)"]),
    "model of images": (
        TRAIN + "--model seeing",
        ["--model seeing is a CLIPModel", "ends in ForCausalLM"],
    ),
    "evaluation of a model of images": (
        "eval --model seeing --dataset rows.jsonl --max-completion-length 64",
        ["--model seeing is a CLIPModel", "ends in ForCausalLM"],
    ),
    "rows with images": (TRAIN + "--dataset images.jsonl", ["--model model is a Qwen3ForCausalLM", "read images"]),
    "held-out rows with images": (TRAIN + "--eval-dataset images.jsonl", ["--model model", "read images"]),
    "image that is not there": (
        TRAIN + "--dataset lost_image.jsonl",
        ["lost_image.jsonl:2", "image 1 names no file", "two.png"],
    ),
    "held-out image that is not there": (TRAIN + "--eval-dataset lost_image.jsonl", ["lost_image.jsonl:2", "two.png"]),
    "image on the network": (
        TRAIN + "--dataset fetched_image.jsonl",
        ["fetched_image.jsonl:1", "nothing is fetched from the network", "--image-urls"],
    ),
    "drawing for an image": (TRAIN + "--dataset drawing.jsonl", ["drawing.jsonl:1", "SVG", "convert it"]),
    "more images than places": (TRAIN + "--dataset two_images.jsonl", ["two_images.jsonl:1", "2 images", "1 place"]),
    "more places than images": (TRAIN + "--dataset two_marks.jsonl", ["two_marks.jsonl:1", "1 image", "2 places"]),
    "rows with video": (TRAIN + "--dataset video.jsonl", ["video.jsonl:1", "'videos'", "remove the column"]),
    "tokenizer of another model": (
        TRAIN + "--model few_tokens",
        ["--model few_tokens", "90 tokens", "row rows.jsonl:1", "tokenizer"],
    ),
    "broken tokenizer": (TRAIN + "--model broken_tokenizer", ["--model broken_tokenizer", "tokenizer"]),
    "no chat template": (TRAIN + "--model no_template", ["rows.jsonl:1", "chat template", "`prompt`"]),
    "misspelt model of the package": (TRAIN + "--model embeded", ["--model embeded", "did you mean embedded?"]),
    "a file for a model": (TRAIN + "--model rows.jsonl", ["--model rows.jsonl", "directory"]),
    "resume of a file": ("train --resume rows.jsonl", ["--resume rows.jsonl", "config.yaml"]),
    "resume of a run with another form": ("train --resume torn_run", ["torn_run/config.yaml line 1", "nested"]),
    "resume of a damaged record": ("train --resume unsure", ["unsure/identity.json is damaged", "delete it"]),
    "resume of no whole checkpoint": ("train --resume damaged", ["damaged/checkpoints", "no whole checkpoint"]),
    "export of nothing": ("export nowhere", ["export nowhere", "config.yaml"]),
    "export of no whole checkpoint": ("export damaged", ["damaged/checkpoints", "no whole checkpoint"]),
    "audit of nothing": ("audit --reward-funcs nowhere.py:f", ["nowhere.py", "check the path"]),
    "another tool's command": ("translate -- python", ["paceline translate", "'python'"]),
    "adapter in no layer": (
        TRAIN + "--lora-rank 4 --lora-targets q_prj",
        ["--lora-targets", "'q_prj'", "did you mean q_proj?"],
    ),
    "reward file with a slip": (TRAIN + "--reward-funcs torn.py:paid", ["torn.py"]),
}
