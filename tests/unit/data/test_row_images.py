"""Images of rows stand where the text asks for them, are expanded once, and are never cut, lost or exchanged."""

import io
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from PIL import Image
from tokenizers import AddedToken

from paceline.checkpoints.digests import tasks_digest
from paceline.config.sections import DataConfig
from paceline.data.duplicates import held_apart, repeated_prompts
from paceline.data.files import read_file
from paceline.data.formats import screen
from paceline.data.pictures import PictureStore
from paceline.data.row_images import ImageInput, has_images
from paceline.data.rows import Row, digest_of
from paceline.data.sources import load_rows
from paceline.data.tasks import build_tasks
from paceline.errors import DataError
from paceline.types import Media
from tests.support.tiny import tiny_tokenizer

SEE, ROW, PIXELS = 260, 261, "<|image|>"
"""Ids of what stands for an image in `seeing_tokenizer`, and the text that takes its features."""
SHOWN_PARTS = (
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
)
PARTS = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    f"{SHOWN_PARTS}<|end|>\n{{% endfor %}}<|im_start|>assistant"
)
TEXTS_OR_PARTS = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% elif message['role'] == 'user' %}"
    f"{SHOWN_PARTS}{{% endif %}}<|end|>\n{{% endfor %}}<|im_start|>assistant"
)
"""A template that shows the parts of no message but the user's."""


@dataclass(frozen=True)
class Grid:
    """A family that reads 8 x 8 pixels a token, with a mark behind each row of them."""

    mark: str = PIXELS
    reserved: tuple[str, ...] = ("<|row|>",)
    image_token_id: int = SEE
    most_images: int | None = None

    def text(self, width, height):
        return (PIXELS * (width // 8) + "<|row|>") * (height // 8)

    def num_features(self, width, height):
        return (width // 8) * (height // 8)


def seeing_tokenizer(template=PARTS):
    tokenizer = tiny_tokenizer(chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(PIXELS), AddedToken("<|row|>")]})
    assert tokenizer.convert_tokens_to_ids([PIXELS, "<|row|>"]) == [SEE, ROW]
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return seeing_tokenizer()


def plain(width=16, height=8, colour=(255, 0, 0)):
    return Image.new("RGB", (width, height), colour)


RED, BLUE = plain(), plain(24, 16, (0, 0, 255))


def rows(*columns):
    return [Row(row_id=f"a.jsonl:{number}", columns=each) for number, each in enumerate(columns, start=1)]


def reading(placeholders=Grid(), most=16):
    read = None if placeholders is None else lambda: placeholders
    return ImageInput(pictures=PictureStore(), placeholders=read, max_images_per_prompt=most)


def tasks_of(tokenizer, *columns, images=None, system=None, **options):
    data = DataConfig(dataset="a.jsonl", **options)
    return build_tasks(rows(*columns), tokenizer, data, system=system, images=images or reading()).tasks


def text_of(task, tokenizer):
    return tokenizer.decode(list(task.prompt_ids))


def hash_of(image):
    return PictureStore().add(image).sha256


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def words(text):
    return {"type": "text", "text": text}


ONE = {"type": "image"}
START, END = "<|bos|><|im_start|>user\n", "<|end|>\n<|im_start|>assistant"
TWO_TOKENS = f"{PIXELS}{PIXELS}<|row|>"  # 16 x 8 pixels
SIX_TOKENS = f"{PIXELS * 3}<|row|>{PIXELS * 3}<|row|>"  # 24 x 16


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"question": "How many?", "image": RED}, f"{TWO_TOKENS}How many?"),
        ({"question": "How many?", "images": [RED, BLUE]}, f"{TWO_TOKENS}{SIX_TOKENS}How many?"),
        ({"problem": "Old <image>, new <image>?", "images": [RED, BLUE]}, f"Old {TWO_TOKENS}, new {SIX_TOKENS}?"),
        ({"messages": user(words("a"), ONE, words("b"), ONE), "images": [RED, BLUE]}, f"a{TWO_TOKENS}b{SIX_TOKENS}"),
        ({"prompt": user({**ONE, "image": BLUE}, words("a"))}, f"{SIX_TOKENS}a"),
        ({"prompt": user({**ONE, "image": BLUE}, ONE), "image": RED}, f"{SIX_TOKENS}{TWO_TOKENS}"),
    ],
)
def test_an_image_stands_where_the_text_asks_for_it(columns, text, tokenizer):
    (task,) = tasks_of(tokenizer, columns)
    assert text_of(task, tokenizer) == START + text + END


def test_images_are_in_front_of_the_users_first_message_and_not_of_the_system_message(tokenizer):
    messages = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant", "user")]
    (task,) = tasks_of(tokenizer, {"messages": messages, "image": RED})
    expected = f"<|bos|><|im_start|>system\ns<|end|>\n<|im_start|>user\n{TWO_TOKENS}u<|end|>\n"
    assert text_of(task, tokenizer).startswith(expected)
    assert task.messages[1] == {"role": "user", "content": [ONE, words("u")]}
    assert [task.messages[index]["content"] for index in (0, 2, 3)] == ["s", "a", "u"]


def test_images_beyond_what_the_model_reads_of_a_prompt_are_refused(tokenizer):
    columns = {"question": "Which?", "images": [RED, BLUE]}
    with pytest.raises(DataError, match="has 2 images, and the model reads 1 image of a prompt, at most"):
        tasks_of(tokenizer, columns, images=reading(Grid(most_images=1)))


def test_the_tokens_of_each_image_are_recorded(tokenizer):
    (task,) = tasks_of(tokenizer, {"problem": "Old <image>, new <image>?", "images": [RED, BLUE]})
    # <|bos|><|im_start|>user\n is 1 + 1 + 5 tokens, "Old " 4, two pixels and a row mark 3, ", new " 6
    assert task.media == (
        Media(sha256=hash_of(RED), start=11, length=2),
        Media(sha256=hash_of(BLUE), start=20, length=7),
    )
    assert [index for index, token in enumerate(task.prompt_ids) if token == SEE] == [11, 12, 20, 21, 22, 24, 25, 26]
    assert task.prompt == f"{START}Old <image 1: 2 tokens>, new <image 2: 6 tokens>?{END}"


def test_a_template_that_shows_parts_of_the_user_alone_gets_texts_otherwise():
    tokenizer = seeing_tokenizer(TEXTS_OR_PARTS)
    (task,) = tasks_of(tokenizer, {"question": "How many?", "image": RED}, system="Count.")
    expected = f"<|bos|><|im_start|>system\nCount.<|end|>\n<|im_start|>user\n{TWO_TOKENS}How many?{END}"
    assert text_of(task, tokenizer) == expected


def test_a_template_that_shows_no_image_is_refused():
    blind = seeing_tokenizer(PARTS.replace(PIXELS, ""))
    with pytest.raises(DataError, match=r"row a.jsonl:1: has 1 image, and the model's chat template writes .* 0 times"):
        tasks_of(blind, {"question": "How many?", "image": RED})


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"prompt": user(words("a"), ONE), "images": [RED, BLUE]},
            "has 2 images in its columns and 1 place for them in its prompt",
        ),
        (
            {"problem": "Old <image>, new <image>?", "images": [RED]},
            "has 1 image in its columns and 2 places for them in its prompt (<image>, or parts of type image)",
        ),
        ({"prompt": user(ONE, words("a"))}, "has 0 images in its columns and 1 place for them"),
        ({"question": "a", "image": RED, "images": [BLUE]}, "has images in the columns 'image' and 'images'; keep one"),
        ({"prompt": "a", "image": RED}, "its prompt is plain text, which shows the model no images"),
        ({"question": "a", "images": [RED] * 17}, "has 17 images, above --max-images-per-prompt 16; raise it"),
        ({"question": "a", "images": ["gone.png", RED]}, "image 1 names no file: there is no 'gone.png'"),
        ({"question": "a", "images": [RED, b"no"]}, "image 2 must be one of PNG"),
        ({"question": "a", "videos": ["a.mp4"]}, "has a column 'videos'; models of text and images are trained here"),
        ({"question": "<bbox>?", "image": RED, "objects": {}}, "its text holds <ref-object> or <bbox>"),
        (
            {"messages": [*user(words("a")), {"role": "tool", "content": [{**ONE, "image": RED}]}]},
            "message 2's content must be a text or a list of parts of type text",
        ),
    ],
    ids=range(11),
)
def test_images_that_do_not_fit_their_row_are_refused(columns, sentence, tokenizer):
    data = DataConfig(dataset="a.jsonl")
    with pytest.raises(DataError) as refused:
        # `check` knows neither model nor tokenizer
        screen(rows(columns), data, None, reading(placeholders=None))
    assert str(refused.value).startswith("row a.jsonl:1: ")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"question": f"What is {PIXELS}?"},
        {"prompt": f"{PIXELS} = "},
        {"question": "<|row|>?", "image": RED},
        {"question": PIXELS, "image": RED},
    ],
)
def test_text_never_stands_for_an_image(columns, tokenizer):
    with pytest.raises(
        DataError, match=r"row a.jsonl:1: its text holds '<\|(image|row)\|>', which stands for an image"
    ):
        tasks_of(tokenizer, columns, {"question": "b", "image": RED})  # an image anywhere makes it a token of images


def test_text_in_two_parts_that_make_up_an_image_token_is_refused(tokenizer):
    columns = {"prompt": user(words("<|ima"), words("ge|>"), {**ONE, "image": RED})}
    with pytest.raises(DataError, match=r"has 1 image, and the model's chat template writes '<\|image\|>' 2 times"):
        tasks_of(tokenizer, columns)


def test_rows_without_images_are_read_as_without_eyes(tokenizer):
    columns = {"messages": [{"role": "user", "content": "1+2?"}], "images": []}
    blind = seeing_tokenizer(TEXTS_OR_PARTS)
    (seen,) = tasks_of(blind, columns)
    data = DataConfig(dataset="a.jsonl")
    (unseen,) = build_tasks(rows(columns), blind, data, system=None).tasks
    assert (seen.prompt, seen.prompt_ids, seen.media, seen.columns) == (unseen.prompt, unseen.prompt_ids, (), columns)


def test_a_model_of_text_refuses_images_by_row(tokenizer):
    with pytest.raises(DataError, match=r"row a\.jsonl:1: has an image, and the model reads text alone,"):
        tasks_of(tokenizer, {"question": "a", "image": RED}, images=reading(placeholders=None))


def test_a_prompt_with_images_is_never_cut(tokenizer):
    # 21 tokens of text and of marks, 16 of the image
    question = {"question": "1", "image": plain(128, 8)}
    (task,) = tasks_of(tokenizer, question)
    assert len(task.prompt_ids) == 37
    for treatment in ("truncate_left", "error"):
        with pytest.raises(DataError) as refused:
            tasks_of(tokenizer, question, max_prompt_length=25, long_prompts=treatment)
        assert str(refused.value) == (
            "row a.jsonl:1: its prompt has 37 tokens, 16 of them for images, above --max-prompt-length 25, and a "
            "prompt with images is not cut; raise the limit, make its images smaller by --image-max-pixels, or set "
            "--long-prompts to drop"
        )


def test_long_prompts_with_images_are_left_out_and_counted_as_asked(tokenizer):
    columns = [{"question": "1", "image": plain(128, 8)}, {"question": "1", "image": RED}]
    options = {"max_prompt_length": 25}
    data = DataConfig(dataset="a.jsonl", long_prompts="drop", **options)
    built = build_tasks(rows(*columns), tokenizer, data, system=None, images=reading())
    assert ([task.task_id for task in built.tasks], built.dropped) == (["a.jsonl:2"], 1)
    data = DataConfig(dataset="a.jsonl", long_prompts="truncate_left", on_bad_row="skip", **options)
    built = build_tasks(rows(*columns), tokenizer, data, system=None, images=reading())
    assert len(built.tasks) == 1
    assert "row a.jsonl:1: its prompt has 37 tokens" in built.skipped[0]


def test_an_animated_image_is_noted(tokenizer):
    file = io.BytesIO()
    plain().save(file, format="GIF", save_all=True, append_images=[plain(colour=(0, 0, 255))])
    data = DataConfig(dataset="a.jsonl")
    columns = [{"question": "a", "image": file.getvalue()}, {"question": "b", "image": BLUE}]
    built = build_tasks(rows(*columns), tokenizer, data, system=None, images=reading())
    assert built.notes == (
        "an image has several frames, of which the model sees the first: 1 of 2 rows, the first: a.jsonl:1",
    )


def test_reward_functions_get_pictures_where_the_columns_have_images(tokenizer):
    checked = []
    columns = {"prompt": user({**ONE, "image": BLUE}, ONE), "images": [RED], "answer": "2"}
    data = DataConfig(dataset="a.jsonl")
    built = build_tasks(
        rows(columns), tokenizer, data, system=None, images=reading(), check=lambda row, _: checked.append(row)
    )
    (task,) = built.tasks
    red, blue = PictureStore().add(RED), PictureStore().add(BLUE)
    expected = {"prompt": user({**ONE, "image": blue}, ONE), "images": [red], "answer": "2"}
    assert task.columns == checked[0] == expected
    assert task.messages == ({"role": "user", "content": [ONE, ONE]},)


def test_a_row_that_is_passed_whole_holds_pictures_too(tokenizer):
    cells = {"prompt": user(words("a")), "image": RED, "mask": BLUE, "boxes": [{"crop": BLUE}]}
    row = Row(row_id="train:1", columns={"prompt": cells["prompt"], "image": RED}, passed={**cells, "row": cells})
    (read,) = screen([row], DataConfig(dataset="a.jsonl"), None, reading()).rows
    red, blue = PictureStore().add(RED), PictureStore().add(BLUE)
    expected = {**cells, "image": red, "mask": blue, "boxes": [{"crop": blue}]}
    assert read.reward_columns == {**expected, "row": expected}
    assert read.columns == {"prompt": cells["prompt"], "image": red}


def test_the_same_question_about_another_image_is_another_prompt(tokenizer):
    other = plain(colour=(0, 255, 0))
    asked = [{"question": "a", "answer": "1", "image": image} for image in (RED, other, RED)]
    (sentence,) = repeated_prompts(tasks_of(tokenizer, *asked))
    assert sentence.startswith("1 of 3 rows repeat the prompt and the answer of an earlier one (a.jsonl:3 those of")
    data = DataConfig(dataset="a.jsonl", eval_share=0.5)
    training, held_out = held_apart(rows(*asked), data, seed=0, images=reading())
    assert sorted(len(part) for part in (training, held_out)) == [1, 2]  # the two of one image stay together


def changed_by_one_pixel(image):
    image = image.copy()
    image.putpixel((0, 0), (254, 0, 0))
    return image


def test_a_pixel_changes_the_digest_of_tasks_and_what_holds_the_image_does_not(tokenizer, tmp_path):
    file = io.BytesIO()
    RED.save(file, format="PNG")
    (tmp_path / "red.png").write_bytes(file.getvalue())
    forms = [RED, file.getvalue(), {"bytes": file.getvalue(), "path": "red.png"}, str(tmp_path / "red.png")]
    digests = {tasks_digest(tasks_of(tokenizer, {"question": "a", "image": form})) for form in forms}
    assert len(digests) == 1
    assert tasks_digest(tasks_of(tokenizer, {"question": "a", "image": changed_by_one_pixel(RED)})) not in digests


def test_a_digest_of_rows_holds_pixels_and_no_address_in_memory():
    def digest(image):
        return digest_of(rows({"question": "a", "image": image}))

    assert digest(plain()) == digest(plain()) != digest(changed_by_one_pixel(plain()))


def test_paths_of_images_stand_beside_the_data_file(tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "Bilder für alle"
    folder.mkdir()
    RED.save(folder / "red.png")
    lines = [{"question": "a", "image": "red.png"}, {"question": "b", "images": ["./red.png"]}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    read = read_file(folder / "rows.jsonl", size=None)
    assert [has_images(row) for row in read] == [True, True]
    built = build_tasks(read, tokenizer, DataConfig(dataset="rows.jsonl"), system=None, images=reading())
    assert [task.media[0].sha256 for task in built.tasks] == [hash_of(RED)] * 2


def test_a_text_of_a_table_may_list_paths(tokenizer, tmp_path):
    RED.save(tmp_path / "red.png")
    (tmp_path / "rows.csv").write_text('question,images\na,"[""red.png"", ""red.png""]"\nb,red.png\nc,\n')
    read = read_file(tmp_path / "rows.csv", size=None)
    assert [has_images(row) for row in read] == [True, True, False]
    built = build_tasks(read, tokenizer, DataConfig(dataset="rows.csv"), system=None, images=reading())
    assert [len(task.media) for task in built.tasks] == [2, 1, 0]


def test_tables_of_images_are_read_as_files(tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    many = [{"question": "a", "images": [RED, BLUE]}, {"question": "b", "images": [BLUE]}]
    features = datasets.Features({"question": datasets.Value("string"), "images": datasets.List(datasets.Image())})
    datasets.Dataset.from_list(many, features=features).save_to_disk(str(tmp_path / "many"))
    single = datasets.Dataset.from_list([{"question": "c", "image": RED}])
    single.cast_column("image", datasets.Image()).to_parquet(str(tmp_path / "single.parquet"))
    read = [*load_rows(str(tmp_path / "many"), split="train", size=None, seed=0)]
    read += load_rows(str(tmp_path / "single.parquet"), split="train", size=None, seed=0)
    assert {type(image["bytes"]) for row in read[:2] for image in row.columns["images"]} == {bytes}
    built = build_tasks(read, tokenizer, DataConfig(dataset="many"), system=None, images=reading())
    red, blue = hash_of(RED), hash_of(BLUE)
    assert [[media.sha256 for media in task.media] for task in built.tasks] == [[red, blue], [blue], [red]]


DIGEST = """
import sys
from tests.unit.data.test_row_images import *
print(tasks_digest(tasks_of(seeing_tokenizer(), {"question": "a", "image": sys.argv[1]})).blocks[0])
"""


@pytest.mark.long
def test_the_digest_is_the_same_in_another_process(tokenizer, tmp_path):
    RED.save(tmp_path / "red.png")
    done = subprocess.run(
        [sys.executable, "-c", DIGEST, str(tmp_path / "red.png")], capture_output=True, text=True, check=True
    )
    (block,) = tasks_digest(tasks_of(tokenizer, {"question": "a", "image": RED})).blocks
    assert done.stdout.strip() == block
