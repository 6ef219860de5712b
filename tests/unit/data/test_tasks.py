"""Prompts are built by the chat template exactly once, and long or impossible ones are handled as asked."""

import json
import re

import pytest

from paceline.config.sections import DataConfig
from paceline.data.prompts import system_prompt
from paceline.data.rows import Row
from paceline.data.tasks import build_tasks
from paceline.errors import ConfigError, DataError, ModelError
from tests.support.tiny import tiny_tokenizer

BOS = 257


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def rows(*columns):
    return [Row(row_id=f"a.jsonl:{number}", columns=each) for number, each in enumerate(columns, start=1)]


def options(**given):
    return DataConfig(dataset="a.jsonl", **given)


def prompt_of(columns, tokenizer, *, system=None, **given):
    (task,) = build_tasks(rows(columns), tokenizer, options(**given), system=system).tasks
    return task.prompt


QUESTION = {"question": "1+2?", "answer": "3", "level": 5}
ASSISTANT = "<|im_start|>assistant\n"


def test_a_question_becomes_a_user_message_with_the_answer_opened(tokenizer):
    (task,) = build_tasks(rows(QUESTION), tokenizer, options(), system="Be brief.").tasks
    assert task.prompt == (f"<|bos|><|im_start|>system\nBe brief.<|end|>\n<|im_start|>user\n1+2?<|end|>\n{ASSISTANT}")
    assert (task.task_id, task.answer, task.columns) == ("a.jsonl:1", "3", QUESTION)
    assert tokenizer.decode(list(task.prompt_ids)) == task.prompt


def test_the_messages_are_kept_as_they_went_into_the_template_and_raw_text_has_none(tokenizer):
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "1+2?"}]
    data = rows(QUESTION, {"prompt": own}, {"prompt": "1+2="})
    tasks = build_tasks(data, tokenizer, options(), system="Default.").tasks
    default = {"role": "system", "content": "Default."}
    assert [task.messages for task in tasks] == [(default, own[1]), tuple(own), None]
    for asked in tasks[:2]:
        rendered = tokenizer.apply_chat_template(list(asked.messages), tokenize=False, add_generation_prompt=True)
        assert rendered == asked.prompt


def test_a_column_that_some_rows_lack_is_none_there_and_does_not_change_how_they_are_read(tokenizer):
    tasks = build_tasks(rows({"question": "a"}, {"prompt": "b", "tests": "t"}), tokenizer, options(), system=None).tasks
    assert [task.columns for task in tasks] == [
        {"question": "a", "prompt": None, "tests": None},
        {"question": None, "prompt": "b", "tests": "t"},
    ]
    assert [task.messages is None for task in tasks] == [False, True]


def test_the_start_token_is_there_once_whoever_writes_it(tokenizer):
    data = [QUESTION, {"prompt": "1+2="}, {"prompt": "<|bos|>1+2="}]
    tasks = build_tasks(rows(*data), tokenizer, options(), system=None).tasks
    assert [task.prompt_ids.count(BOS) for task in tasks] == [1, 1, 1]
    assert [task.prompt_ids[0] for task in tasks] == [BOS] * 3
    assert tasks[1].prompt_ids == tasks[2].prompt_ids


def test_text_in_the_column_prompt_is_read_as_it_stands(tokenizer):
    assert prompt_of({"prompt": "1+2="}, tokenizer, system="the rewards' default") == "1+2="
    assert prompt_of({"prompt": "1+2="}, tokenizer, system_prompt="") == "1+2="


def test_a_chosen_system_message_on_raw_text_is_refused(tokenizer):
    with pytest.raises(DataError, match=r"^row a\.jsonl:1: its prompt is plain text.*leave --system-prompt out"):
        prompt_of({"prompt": "1+2="}, tokenizer, system="Be brief.", system_prompt="Be brief.")


def test_a_rows_own_system_message_yields_only_to_one_that_the_user_chose(tokenizer):
    row = {"prompt": [{"role": "system", "content": "Own."}, {"role": "user", "content": "1+2?"}]}
    tail = f"<|im_start|>user\n1+2?<|end|>\n{ASSISTANT}"
    start = "<|bos|><|im_start|>system\n"
    assert prompt_of(row, tokenizer, system="Default.") == f"{start}Own.<|end|>\n{tail}"
    assert prompt_of(row, tokenizer, system="Chosen.", system_prompt="Chosen.") == f"{start}Chosen.<|end|>\n{tail}"
    assert prompt_of(row, tokenizer, system=None, system_prompt="") == f"<|bos|>{tail}"


def test_the_thinking_switch_reaches_the_template_only_when_set(tokenizer):
    assert prompt_of(QUESTION, tokenizer).endswith(ASSISTANT)
    assert prompt_of(QUESTION, tokenizer, enable_thinking=True).endswith(ASSISTANT)
    assert prompt_of(QUESTION, tokenizer, enable_thinking=False).endswith(f"{ASSISTANT}<think></think>")


def test_messages_without_a_chat_template_are_refused_with_both_ways_out():
    bare = tiny_tokenizer(chat_template=None)
    with pytest.raises(ModelError, match=r"^row a\.jsonl:1: .*use a model with one, or .*column named `prompt`"):
        prompt_of(QUESTION, bare)
    assert prompt_of({"prompt": "1+2="}, bare) == "1+2="


def test_a_template_that_refuses_a_role_names_the_row_and_the_option():
    picky = tiny_tokenizer(
        chat_template="{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0]['content'] }}"
    )
    with pytest.raises(DataError, match=r"row a\.jsonl:1: .*system, user \(no system role\).*--system-prompt ''"):
        prompt_of(QUESTION, picky, system="Be brief.")
    assert prompt_of(QUESTION, picky) == "1+2?"


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(DataError, match=r"row a\.jsonl:1: its prompt has no tokens"):
        prompt_of(QUESTION, tiny_tokenizer(chat_template="{# nothing #}"))


# With the start token, 5, 9 and 3 tokens.
LONG = ({"prompt": "four"}, {"prompt": "eight ch"}, {"prompt": "ab"})


def test_a_long_prompt_stops_the_run_with_every_number_that_helps(tokenizer):
    with pytest.raises(DataError) as caught:
        build_tasks(rows(*LONG), tokenizer, options(max_prompt_length=4), system=None)
    assert str(caught.value) == (
        "row a.jsonl:1: its prompt has 5 tokens, above --max-prompt-length 4 (2 of 3 rows are); raise the limit to 9, "
        "or set --long-prompts to drop or truncate_left"
    )


def test_a_prompt_of_exactly_the_limit_is_not_long(tokenizer):
    taskset = build_tasks(rows(*LONG), tokenizer, options(max_prompt_length=9), system=None)
    assert (len(taskset.tasks), taskset.dropped, taskset.truncated) == (3, 0, 0)


def test_dropped_rows_are_counted_and_their_lengths_kept(tokenizer):
    taskset = build_tasks(rows(*LONG), tokenizer, options(max_prompt_length=5, long_prompts="drop"), system=None)
    assert [task.task_id for task in taskset.tasks] == ["a.jsonl:1", "a.jsonl:3"]
    assert (taskset.dropped, taskset.truncated, taskset.lengths) == (1, 0, (5, 9, 3))


def test_truncation_keeps_the_start_token_and_the_end_of_plain_text(tokenizer):
    data = options(max_prompt_length=4, long_prompts="truncate_left")
    taskset = build_tasks(rows(*LONG), tokenizer, data, system=None)
    assert [task.prompt for task in taskset.tasks] == ["<|bos|>our", "<|bos|> ch", "ab"]
    assert [(len(task.prompt_ids), task.tokens_cut) for task in taskset.tasks] == [(4, 1), (4, 5), (3, 0)]
    assert (taskset.dropped, taskset.truncated, taskset.lengths) == (0, 2, (5, 9, 3))


# 52 tokens, one a byte but for marks: start, system message (17), user (6), "abcdefgh" (8), end and opening.
HEAD, TAIL = "<|bos|><|im_start|>system\nBe brief.<|end|>\n<|im_start|>user\n", f"<|end|>\n{ASSISTANT}"


def test_truncation_keeps_the_system_message_and_cuts_what_was_asked(tokenizer):
    head, tail = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (HEAD, TAIL))
    given = {"long_prompts": "truncate_left", "max_prompt_length": head + tail + 3}
    data = {"question": "abcdefgh"}
    assert prompt_of(data, tokenizer, system="Be brief.", **given) == f"{HEAD}fgh{TAIL}"
    talk = [
        {"role": "user", "content": "abcdefgh"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "xyz"},
    ]
    assert prompt_of({"prompt": talk}, tokenizer, system="Be brief.", **given) == f"{HEAD}xyz{TAIL}"


def test_truncation_without_room_for_a_question_stops_or_is_skipped_and_counted(tokenizer):
    given = {"long_prompts": "truncate_left", "max_prompt_length": 30}
    data = rows({"question": "abcdefgh"}, {"prompt": "short"})
    reason = r"row a\.jsonl:1: its prompt has \d+ tokens, and --max-prompt-length 30 leaves no room for its question"
    with pytest.raises(DataError, match=f"^{reason}"):
        build_tasks(data, tokenizer, options(**given), system="Be brief.")
    taskset = build_tasks(data, tokenizer, options(on_bad_row="skip", **given), system="Be brief.")
    assert ([task.prompt for task in taskset.tasks], taskset.truncated) == (["short"], 0)
    assert [re.match(reason, sentence) is not None for sentence in taskset.skipped] == [True]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] | upper }} and the answer is",
        "{{ messages[0]['content'] }}{{ messages[0]['content'] }}",
        "<{{ messages[0]['content'] | length }}>{{ messages[0]['content'] }} and the answer is",
    ],
)
def test_a_template_that_does_not_show_what_may_be_cut_is_refused(template):
    asked, data = {"question": "abcdefgh" * 4}, {"long_prompts": "truncate_left", "max_prompt_length": 24}
    with pytest.raises(DataError, match=r"row a\.jsonl:1: .* does not show where its system message ends"):
        prompt_of(asked, tiny_tokenizer(chat_template=template), **data)


def test_dropping_everything_is_refused_with_the_shortest_length(tokenizer):
    with pytest.raises(DataError, match=r"all 3 prompts .*--max-prompt-length 2; .*shortest prompt has 3 tokens"):
        build_tasks(rows(*LONG), tokenizer, options(max_prompt_length=2, long_prompts="drop"), system=None)


def test_no_rows_and_two_rows_of_one_name_are_refused(tokenizer):
    with pytest.raises(DataError, match="holds no rows"):
        build_tasks([], tokenizer, options(), system=None)
    with pytest.raises(DataError, match=r"row a\.jsonl:1: two rows have this name"):
        build_tasks(rows(QUESTION) * 2, tokenizer, options(), system=None)


def test_the_system_message_is_the_options_else_the_default(tmp_path):
    path = tmp_path / "message.txt"
    path.write_bytes(b"\xef\xbb\xbfBe brief.\r\nPlease.\n")
    assert system_prompt(options(), "default") == "default"
    assert system_prompt(options(), None) is None
    assert system_prompt(options(system_prompt="Be brief."), "default") == "Be brief."
    assert system_prompt(options(system_prompt=""), "default") is None
    assert system_prompt(options(system_prompt=f"file:{path}"), "default") == "Be brief.\nPlease."


def test_a_path_never_becomes_the_system_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my prompt").touch()
    for path in ("prompts/missing.txt", "README.MD", "chat.jinja", "my prompt"):
        with pytest.raises(ConfigError, match=f"'{path}'; write file:"):
            system_prompt(options(system_prompt=path), None)
    for message in ("Answer as in notes.txt", "Brief.", "x" * 5000, "a\0b"):
        assert system_prompt(options(system_prompt=message), None) == message


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), (b"\xff", "UTF-8"), (b" \n", "is empty")])
def test_a_system_prompt_file_that_cannot_be_used_is_refused(tmp_path, content, message):
    path = tmp_path / "message.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"--system-prompt file:.*{message}"):
        system_prompt(options(system_prompt=f"file:{path}"), "default")


TWO_ROLES = (
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% elif m.role == 'assistant' %}"
    "A: {{ m.content }}\n{% endif %}{% endfor %}A: "
)
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


@pytest.mark.parametrize(
    "hidden",
    [
        [{"role": "system", "content": "Be brief."}],
        [{"role": "developer", "content": "Be brief."}],
        [
            *({"role": role, "content": "hi"} for role in ("user", "assistant")),
            {"role": "system", "content": "Be brief."},
        ],
        [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "4"}],
        [{"role": "tool", "content": "4"}],
    ],
)
def test_a_message_that_the_template_does_not_show_is_refused(hidden):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TWO_ROLES
    columns = {"prompt": [*hidden, {"role": "user", "content": "1+2?"}]}
    with pytest.raises(DataError, match=r"^row a\.jsonl:1: the model's chat template does not show .* never read it"):
        build_tasks(rows(columns), tokenizer, options(), system=None)


def test_the_tools_of_a_row_are_in_its_prompt_without_control_tokens(tokenizer):
    schema = {"name": "price", "description": "x<|end|>y", "parameters": {"type": "object", "properties": {}}}
    shown = [
        prompt_of({"question": "?", "tools": tools}, tokenizer)
        for tools in ([{"type": "function", "function": schema}], [schema], json.dumps([schema]), repr([schema]))
    ]
    assert '"name": "price"' in shown[0]
    assert "x< |end|>y" in shown[0]
    assert shown == shown[:1] * 4
    assert prompt_of({"question": "?", "tools": None}, tokenizer) == prompt_of({"question": "?"}, tokenizer)
    with pytest.raises(DataError, match=r"^row a\.jsonl:1: column 'tools': tool 1 must be a JSON schema with a name"):
        prompt_of({"question": "?", "tools": [{"description": "x"}]}, tokenizer)
    with pytest.raises(DataError, match=r"column 'tools' holds .*, which is no JSON"):
        prompt_of({"question": "?", "tools": '[{"name": '}, tokenizer)


def test_what_a_row_says_and_the_model_does_not_read_is_noted(tokenizer):
    own = [{"role": "system", "content": "Own."}, {"role": "user", "name": "Ann", "content": "a<|end|>b"}]
    noted = build_tasks(
        rows({"prompt": own, "tools": "hammer"}), tokenizer, options(system_prompt=""), system=None
    ).notes
    assert [note.partition(": 1 of 1 rows, the first: a.jsonl:1")[0] for note in noted] == [
        "the chat template does not show the key 'name' of messages of the role 'user'",
        "--system-prompt takes the place of a system message of the row's own",
        "a message holds control tokens, which the model reads as such (<|end|>)",
        "prompts do not show the column 'tools', which holds no JSON schemas of tools",
    ]
    assert build_tasks(rows(QUESTION), tokenizer, options(), system="Be brief.").notes == ()


def test_a_key_that_is_no_text_is_noted_where_the_template_does_not_show_it():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for d in m.documents or [] %} {{ d.title }}"
        "{% endfor %}\n{% endfor %}"
    )
    message = {"role": "user", "content": "?", "documents": [{"title": "A"}], "context": ["B"], "limit": 5}
    noted = build_tasks(rows({"prompt": [message]}), tokenizer, options(), system=None).notes
    assert [note.partition(":")[0] for note in noted] == [
        f"the chat template does not show the key {key!r} of messages of the role 'user'"
        for key in ("context", "limit")
    ]
