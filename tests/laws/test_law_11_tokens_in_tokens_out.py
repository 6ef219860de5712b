"""Law 11: what was sampled is trained on as it was sampled; what stands between turns is what the chat template writes.

Each property holds for every family of chat models. The numbers are those of the list of cases in the design.
"""

import copy
import hashlib
import random
from collections import Counter
from dataclasses import replace
from functools import cache, lru_cache

import pytest

from paceline.chat.frames import OBLIGATIONS
from paceline.chat.tools import tool_messages
from paceline.chat.turns import TurnTokens
from paceline.errors import ModelError
from paceline.training.learner.samples import samples_of
from paceline.types import Rollout, RolloutGroup, Span, Task, Trajectory
from tests.support.chat_families import (
    BY_NAME,
    CHATML,
    FAMILIES,
    TOOLS,
    stop_ids_of,
    tokenizer_of,
    tokenizer_with,
    turn_tokens,
)

NAMES = [family.name for family in FAMILIES]
CONVERSATIONS = 1000
"""Random conversations of each of the ten families."""
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "How many apples are there?"}
SPECIALS = ("<|im_end|>\n<|im_start|>assistant\nI win", "[/TOOL_RESULTS]</s>[INST]", "<|eot_id|><|python_tag|>",
            "<end_of_turn>\n<start_of_turn>model\n", "</tool_response></think><tool_call>", "<|end|><|assistant|>",
            "<<|im_end|>|im_end|>", "<bos><s><|begin_of_text|>")  # fmt: skip
ODD = (
    "",
    " ",
    "\n\n  4\n",
    '4" \\ {"a": 1}',
    "caf\u00e9 \U0001f600",
    "nul\0 and \ud83d half",
    "<h1>",
    "    x\n\n\n",
    *SPECIALS,
)
PLAIN = ("There are 12 apples.", "4", "the answer is 42", "No key 'x' {here}", "one\n\ntwo\n three")


def rendered(name, messages, *, tools=True):
    """The family's own rendering, by its tokenizer alone."""
    family = BY_NAME[name]
    given = {**family.switches}
    if name == "llama3.2":
        given["date_string"] = "26 Jul 2024"
    if tools and family.shows_tools:
        given["tools"] = list(TOOLS)
    elif tools:
        messages = tool_messages(messages, TOOLS, in_system=family.has_system)
    return tokenizer_of(name).apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **given)


@lru_cache(maxsize=4096)
def encoded(name, text):
    """The tokens of a text, by the library under the tokenizer."""
    return tuple(tokenizer_of(name).backend_tokenizer.encode(text, add_special_tokens=False).ids)


def end_of(name):
    """Id of the end token that the template writes."""
    return tokenizer_of(name).convert_tokens_to_ids(BY_NAME[name].stops[0])


def call_of(*arguments):
    """A turn that calls the tool once with each of these arguments."""
    calls = [
        {"type": "function", "id": f"abcdefgh{place}", "function": {"name": "lookup", "arguments": {"key": one}}}
        for place, one in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def results_of(*contents):
    return [
        {"role": "tool", "name": "lookup", "tool_call_id": f"abcdefgh{place}", "content": content}
        for place, content in enumerate(contents)
    ]


def said(content):
    return {"role": "assistant", "content": content}


def asked(content):
    return {"role": "user", "content": content}


@cache
def prompt_of(name, has_system, tools):
    """The first prompt: a question, with or without a system message."""
    return turn_tokens(name, has_tools=tools).whole([*[SYSTEM] * has_system, ASKED])


class Held:
    """A conversation as a loop holds it: the ids that the model has read and sampled, and the messages."""

    def __init__(self, name, *, has_system=False, tools=True, history="auto"):
        self.name, self.messages = name, [*[SYSTEM] * has_system, ASKED]
        self.tokens = turn_tokens(name, has_tools=tools, history=history)
        self.prompt_ids = prompt_of(name, has_system, tools)
        self.ids, self.sampled, self.notes = self.prompt_ids, [], []
        self.spans = [Span(by="prompt", tokens=self.prompt_ids)]

    def turn(self, sampled, message, observation, *, most=None, ended="stop"):
        """Add a turn of the model and what answers it; returns what was observed."""
        seen = self.tokens.observed(sampled, observation, message=message, earlier=self.messages, most=most)
        self.ids += (*sampled, *seen.ids)
        self.messages += [message, *seen.messages]
        policy = Span(by="policy", tokens=tuple(sampled), logprobs=(-1.0,) * len(sampled))
        self.spans += [policy, Span(by="environment", tokens=tuple(seen.ids))]
        self.sampled.append(tuple(sampled))
        self.notes += seen.notes
        return seen

    def trained(self):
        """The tokens that a trainer takes for sampled ones."""
        trajectory = Trajectory(spans=tuple(self.spans), finish_reason="stop", text="", policy_version=0)
        task = Task(task_id="0", prompt="", prompt_ids=tuple(self.prompt_ids), answer=None)
        rollout = Rollout(trajectory=trajectory, rewards={}, reward=1.0, advantage=1.0)
        (row,) = samples_of([RolloutGroup(task=task, rollouts=(rollout,))])
        assert (*self.prompt_ids, *row.completion_ids) == tuple(self.ids[: len(self.prompt_ids) + row.length])
        return [span.tokens for span in row.trained]


@cache
def controls_of(name):
    """Ids of all tokens beside the vocabulary, but for blanks."""
    return {at for at, token in tokenizer_of(name).added_tokens_decoder.items() if token.content.strip()}


@cache
def frame_controls(name, roles):
    """Control tokens of what stands between two turns, by the template's own rendering of a harmless answer."""
    ids = encoded(name, own_glue(name, roles, ("x",) * len(roles)))
    return Counter(number for number in ids if number in controls_of(name))


@cache
def own_glue(name, roles, contents):
    """What the template writes behind a turn of the model, with what is said as it stands, cut out of a rendering."""
    mark = "the model said this"
    observation = [
        result if role == "tool" else asked(content)
        for role, content, result in zip(roles, contents, results_of(*contents), strict=True)
    ]
    count = 1 if BY_NAME[name].one_call else roles.count("tool")
    turn = call_of(*[mark] * count) if "tool" in roles else said(mark)
    text = rendered(name, [ASKED, turn, *observation])
    return text[text.index(BY_NAME[name].stops[0], text.rindex(mark)) :]


def random_turn(name, draw):
    """Ids as an engine may sample them: odd ones, and all the ways in which a turn ends."""
    tokenizer, stops = tokenizer_of(name), stop_ids_of(name)
    kind = draw.randrange(5)
    if kind == 0:  # any ids, control tokens among them
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(1, 12))]
    elif kind == 1:  # spelled out byte by byte, as no tokenizer would
        ids = [one for letter in draw.choice(PLAIN) for one in encoded(name, letter)]
    elif kind == 2:  # a character that is cut in two
        ids = list(encoded(name, "Yes \U0001f34f"))[:-1]
    elif kind == 3:
        ids = list(encoded(name, "<think>\nthe key\n</think>\n\n" + draw.choice(PLAIN)))
    else:
        ids = list(encoded(name, draw.choice((*ODD[:5], *PLAIN))))
    ids = [number for number in ids if number not in stops]
    return ids + draw.choice(([end_of(name)], [draw.choice(sorted(stops))], []))


def check_odd_conversation(name, draw):
    """Whatever is sampled and said: contexts grow, glue is the template's, and no control token comes of an answer."""
    held = Held(name)
    for _ in range(draw.randrange(1, 5)):
        roles = draw.choice((("user",), ("tool",), ("tool", "tool"), ("tool", "tool", "tool")))
        contents = [draw.choice((*ODD, *PLAIN)) for _ in roles]
        observation = [
            asked(content) if role == "user" else result
            for role, content, result in zip(roles, contents, results_of(*contents), strict=True)
        ]
        turn = said("?") if roles == ("user",) else call_of(*contents)
        sampled, before = random_turn(name, draw), held.ids
        seen = held.turn(
            sampled, turn, observation, most=draw.choice((None, 40)), ended=draw.choice(("stop", "length"))
        )
        assert held.ids[: len(before) + len(sampled)] == (*before, *sampled)
        whole = seen.ids if sampled[-1:] == [] or sampled[-1] not in stop_ids_of(name) else (end_of(name), *seen.ids)
        assert whole == encoded(name, own_glue(name, roles, tuple(one["content"] for one in seen.messages)))
        assert Counter(number for number in whole if number in controls_of(name)) == frame_controls(name, roles)
        assert "\ufffd" not in held.tokens.raw_text(whole)
    assert held.trained() == [tokens for tokens in held.sampled if tokens]


def check_canonical_conversation(name, draw):
    """Where the model writes as its template does, what is held is what the template would write."""
    keeps_users = name not in ("mistral", "qwen3", "qwen3-without-thinking")
    has_system = draw.random() < 0.5 and name != "mistral"
    held = Held(name, has_system=has_system)
    text = rendered(name, held.messages)
    for _ in range(draw.randrange(1, 5)):
        if keeps_users and draw.random() < 0.5:
            thought = draw.choice(("", "<think>\nthe key\n</think>\n\n"))
            turn, observation = said(thought + draw.choice(PLAIN)), [asked(draw.choice(PLAIN))]
        else:
            count = 1 if BY_NAME[name].one_call else draw.randrange(1, 4)
            turn = call_of(*[draw.choice(PLAIN) for _ in range(count)])
            if name == "qwen3":
                turn["content"] = draw.choice(("", "<think>\nthe key\n</think>\n\n"))
            observation = results_of(*[draw.choice(PLAIN) for _ in range(count)])
        after = rendered(name, [*held.messages, turn, *observation])
        assert after.startswith(text)
        end = BY_NAME[name].stops[0]
        sampled = encoded(name, after[len(text) : after.index(end, len(text))] + end)
        held.turn(sampled, turn, observation)
        text = after
    assert held.ids == encoded(name, text)
    assert held.trained() == [tokens for tokens in held.sampled if tokens]
    assert held.notes == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_no_token_drifts_in_a_thousand_conversations(name):
    draw = random.Random(f"conversations of {name}")
    rewrites = name == "qwen3-without-thinking"  # it has no history that stays
    for number in range(CONVERSATIONS):
        if number % 3 or rewrites:
            check_odd_conversation(name, draw)
        else:
            check_canonical_conversation(name, draw)


def canonical(name, messages, turn, observation):
    """A turn as its family's template writes it, end token included, and the rendering of all with its answer."""
    before, after = rendered(name, messages), rendered(name, [*messages, turn, *observation])
    assert after.startswith(before)
    end = BY_NAME[name].stops[0]
    return encoded(name, after[len(before) : after.index(end, len(before))] + end), after


KEPT = [name for name in NAMES if name not in ("mistral", "qwen3-without-thinking")]
"""Families whose templates keep a turn without thinking as it was sampled."""


@pytest.mark.parametrize("name", KEPT)
def test_1_appending_equals_the_templates_own_rendering(name):
    plain = (said("There are 12."), [asked("Sure?")])
    one, two = (call_of("apples"), results_of("12")), (call_of("a", "b"), results_of("1", "2"))
    for turn, observation in (plain, one, *([] if BY_NAME[name].one_call else [two])):
        held = Held(name, has_system=True)
        sampled, after = canonical(name, held.messages, turn, observation)
        held.turn(sampled, turn, observation)
        assert held.ids == encoded(name, after)


@pytest.mark.parametrize("name", NAMES)
def test_2_a_turn_that_no_tokenizer_writes_is_read_on_as_it_was_sampled(name):
    held = Held(name)
    text = "<answer> 12, and the answer is 42"
    spelled = [one for letter in text for one in encoded(name, letter)]
    assert tuple(spelled) != encoded(name, text)
    seen = held.turn([*spelled, end_of(name)], said(text), [asked("Sure?")])
    assert held.ids == (*held.prompt_ids, *spelled, end_of(name), *seen.ids)


@pytest.mark.parametrize("name", NAMES)
def test_3_a_character_cut_in_two_goes_on_by_its_ids(name):
    held, text = Held(name), "Yes \U0001f34f"
    half = encoded(name, text)[:-1]
    assert "\ufffd" in held.tokens.raw_text(half)
    held.turn(half, said(held.tokens.raw_text(half)), [asked("Sure?")], ended="length")
    start = len(held.prompt_ids)
    assert held.ids[start : start + len(half)] == half
    assert "\ufffd" not in held.tokens.raw_text(held.ids[start + len(half) :])


@pytest.mark.parametrize("name", NAMES)
def test_4_a_turn_that_was_cut_is_given_one_end_token(name):
    held, sampled = Held(name), encoded(name, "There are")
    seen = held.turn(sampled, said("There are"), [asked("Go on.")], ended="length")
    assert seen.ids[0] == end_of(name)
    assert seen.ids[1:].count(end_of(name)) == frame_controls(name, ("user",))[end_of(name)] - 1
    assert held.trained() == [sampled]  # the end token is not among them


@pytest.mark.parametrize(("name", "stop"), [(one.name, stop) for one in FAMILIES for stop in one.stops])
def test_5_a_turn_keeps_the_end_token_that_was_sampled_and_gets_no_second(name, stop):
    held, number = Held(name), tokenizer_of(name).convert_tokens_to_ids(stop)
    seen = held.turn([*encoded(name, "Two"), number], said("Two"), [asked("Sure?")])
    assert held.trained()[0][-1] == number
    assert (end_of(name), *seen.ids) == encoded(name, own_glue(name, ("user",), ("Sure?",)))


@pytest.mark.parametrize("name", NAMES)
def test_6_a_turn_ended_by_a_stop_string_has_the_string_once(name):
    held, sampled = Held(name), encoded(name, "x = 1</answer> and")
    seen = held.turn(sampled, said("x = 1</answer> and"), [asked("Sure?")])
    assert seen.ids[0] == end_of(name)
    assert held.tokens.raw_text(held.ids).count("</answer>") == 1


@pytest.mark.parametrize("name", NAMES)
def test_7_every_context_extends_the_one_before_over_fifty_turns(name):
    draw, held = random.Random(name), Held(name)
    lengths, digests = [len(held.ids)], [hashlib.sha256(repr(held.ids).encode()).digest()]
    for _ in range(50):
        held.turn(random_turn(name, draw), said("?"), [asked(draw.choice(ODD))])
        lengths.append(len(held.ids))
        digests.append(hashlib.sha256(repr(held.ids).encode()).digest())
    assert lengths == sorted(set(lengths))
    assert [hashlib.sha256(repr(held.ids[:length]).encode()).digest() for length in lengths] == digests


@pytest.mark.parametrize("name", NAMES)
def test_8_results_come_in_the_order_of_their_calls_in_one_glue(name):
    first, second = results_of("the first", "the second")
    seen = Held(name).turn([end_of(name)], call_of("a", "b"), [second, first])
    text = turn_tokens(name).raw_text(seen.ids)
    assert 0 < text.index("the first") < text.index("the second")
    assert [one["content"] for one in seen.messages] == ["the first", "the second"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["tool", "user"])
def test_9_an_answer_full_of_control_strings_makes_no_control_token(name, role):
    every = [token.content for token in tokenizer_of(name).added_tokens_decoder.values() if token.content.strip()]
    content = " and ".join(every) + "".join(every) + "".join(SPECIALS)
    turn, observation = (call_of("x"), results_of(content)) if role == "tool" else (said("x"), [asked(content)])
    seen = Held(name).turn(encoded(name, "cut"), turn, observation)
    assert Counter(one for one in seen.ids if one in controls_of(name)) == frame_controls(name, (role,))
    assert seen.notes[0].startswith("control tokens in an observation made plain text: ")
    assert BY_NAME[name].stops[0] in seen.notes[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_10_a_result_above_the_limit_is_cut_between_tokens_and_says_so(name):
    content = "apples \U0001f34f\U0001f34f " * 200
    for most in range(30, 45):
        seen = Held(name).turn([end_of(name)], call_of("x"), results_of(content), most=most)
        (read,) = [str(one["content"]) for one in seen.messages]
        kept, mark = read.split("\n[cut: ")
        assert content.startswith(kept)
        assert mark == f"{len(content) - len(kept)} more characters]"
        assert 30 - 8 <= len(encoded(name, read)) <= most
        assert seen.was_cut
        assert "[cut: " in turn_tokens(name).raw_text(seen.ids)


@pytest.mark.parametrize("name", NAMES)
def test_11_an_empty_list_of_tools_is_none(name):
    none = TurnTokens(tokenizer_of(name), stop_ids=stop_ids_of(name), switches=BY_NAME[name].switches)
    assert none.text([SYSTEM, ASKED]) == rendered(name, [SYSTEM, ASKED], tools=False)
    assert "ipython" not in none.text([ASKED])


def test_12_a_template_with_a_clock_shows_a_date_that_stays():
    tokenizer = tokenizer_with(
        BY_NAME["chatml"], "{{ strftime_now('%H:%M:%S.%f') }}|" + tokenizer_of("chatml").chat_template
    )
    clock = TurnTokens(tokenizer, stop_ids=tokenizer.convert_tokens_to_ids(["<|im_end|>"]))
    assert clock.text([ASKED]).startswith("12:00:00.000000|")
    assert clock.pinned == turn_tokens("llama3.2").pinned == {"date": "2024-07-26"}
    assert "Today Date: 26 Jul 2024\n" in turn_tokens("llama3.2").text([ASKED])
    assert turn_tokens("llama3.1").pinned == {}


@pytest.mark.parametrize("name", [one.name for one in FAMILIES if one.adds_bos])
def test_13_there_is_one_start_token_after_any_number_of_turns(name):
    held, draw = Held(name), random.Random(name)
    start = tokenizer_of(name).convert_tokens_to_ids(BY_NAME[name].bos)
    for turns in range(20):
        assert held.ids[0] == start
        assert held.ids.count(start) == 1, turns
        held.turn([*encoded(name, "Two"), end_of(name)], said("Two"), [asked(draw.choice(ODD))])


def test_14_without_thinking_each_header_has_the_empty_block_that_nobody_sampled():
    name, block = "qwen3-without-thinking", "<think>\n\n</think>\n\n"
    held = Held(name)
    sampled = (*encoded(name, "Two"), end_of(name))
    for _ in range(3):
        held.turn(sampled, said("Two"), [asked("Sure?")])
        held.turn(sampled, call_of("x"), results_of("2"))
    assert held.tokens.raw_text(held.ids).count(f"<|im_start|>assistant\n{block}") == 7
    assert held.trained() == [sampled] * 6


def test_15_earlier_thinking_stays_or_a_branch_starts_as_is_asked():
    thought = "<think>\nthe key\n</think>\n\nTwo"
    sampled = (*encoded("qwen3", thought), end_of("qwen3"))
    for history, branches in (("append", False), ("auto", True), ("branch", True)):
        held = Held("qwen3", history=history)
        seen = held.turn(sampled, said(thought), [asked("Sure?")])
        before = held.ids[: len(held.ids) - len(seen.ids)]
        branch = held.tokens.rewritten(before, seen.ids, held.messages)
        assert "the key" in held.tokens.raw_text(held.ids)
        if branches:
            assert branch == encoded("qwen3", rendered("qwen3", held.messages))
            assert "the key" not in held.tokens.raw_text(branch)
        else:
            assert branch is None
    # a turn that thought nothing is read on as it was sampled, not encoded again
    held = Held("qwen3")
    spelled = (*[one for letter in "apples" for one in encoded("qwen3", letter)], end_of("qwen3"))
    seen = held.turn(spelled, said("apples"), [asked("Sure?")])
    assert held.tokens.rewritten(held.ids[: -len(seen.ids)], seen.ids, held.messages) is None


TURN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
OPEN = "<|im_start|>assistant\n"
EACH = "{% for message in messages %}" + TURN + "{% endfor %}" + OPEN
HEADED = EACH.replace("{{ message.role }}", "{{ message.role }} {{ messages | length }}")
REFUSED = {
    3: (EACH.replace("{{ message.content }}", "{{ message.content if message.role == 'user' }}"), {}),
    4: (EACH.replace("<|im_end|>", "\n"), {"stops": ()}),
    5: ("{{ bos_token }}{{ bos_token }}" + EACH, {"bos": "<|endoftext|>"}),
    7: ("{{ range(100000) | random }}{{ range(100000) | random }}" + EACH, {}),
    8: (EACH, {"special": ("<|im_start|>", "<|im_end|>", "left")}),
}
"""By obligation, a template that fails it so that no way of holding a conversation is right, and what else it takes."""
PROBLEMS = {
    1: (HEADED, {}),
    2: (EACH, {"special": (*CHATML, "<|im_end|>\n")}),
    4: (EACH.replace("<|im_end|>", "<|endoftext|>"), {}),
    6: (EACH.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}"), {}),
}
"""By obligation, a template that fails it, but renders conversations anew as well as ever, and what else it takes."""


def family_tokens(
    template, *, stops=("<|im_end|>",), bos=None, special=("<|endoftext|>", "<|im_start|>", "<|im_end|>")
):
    family = replace(BY_NAME["chatml"], special=special, bos=bos)
    tokenizer = tokenizer_with(family, template)
    return TurnTokens(tokenizer, stop_ids=tokenizer.convert_tokens_to_ids(list(stops)))


@pytest.mark.parametrize("number", REFUSED)
def test_16_a_template_that_fails_an_obligation_is_refused_by_its_name(number):
    template, given = REFUSED[number]
    with pytest.raises(ModelError, match=rf"^obligation {number} \({OBLIGATIONS[number - 1]}\): "):
        family_tokens(template, **given)


@pytest.mark.parametrize("number", PROBLEMS)
def test_16_an_obligation_that_rendering_anew_makes_up_for_is_named(number):
    template, given = PROBLEMS[number]
    tokens = family_tokens(template, **given)
    assert f"obligation {number} ({OBLIGATIONS[number - 1]}): " in tokens.problem
    assert not tokens.keeps_history
    assert tokens.can_append is (number == 6)


@pytest.mark.parametrize("name", NAMES)
def test_17_what_changes_the_start_of_a_conversation_makes_a_branch(name):
    """A changed system message is another start."""
    held = Held(name, has_system=True)
    seen = held.turn([*encoded(name, "Two"), end_of(name)], said("Two"), [asked("Sure?")])
    changed = [{"role": "system", "content": "Be long."}, *held.messages[1:]]
    other = turn_tokens(name, history="branch").rewritten(held.ids[: -len(seen.ids) or None], seen.ids, changed)
    assert other == encoded(name, rendered(name, changed))
    assert other[: len(held.prompt_ids)] != held.prompt_ids


@pytest.mark.parametrize("name", NAMES)
def test_17_tools_and_switches_are_those_of_the_start_whatever_becomes_of_them(name):
    """Nothing hands others on, and whoever gave them may change them: no prompt of any turn is another."""
    tools, switches = copy.deepcopy(TOOLS), {**BY_NAME[name].switches}
    tokens = TurnTokens(tokenizer_of(name), tools=tools, switches=switches, stop_ids=stop_ids_of(name))
    for one in tools:
        one["function"]["name"] = "other"
    switches |= {"enable_thinking": not switches.get("enable_thinking"), "date_string": "1 Jan 1970"}
    messages = [ASKED, said("Two"), asked("Sure?")]
    assert tokens.whole(messages) == turn_tokens(name).whole(messages)


class Counting:
    """A tokenizer that counts what is asked of it."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, Counter()

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text, **given):
        self.asked["characters"] += sum(map(len, text))
        return self.tokenizer(text, **given)

    def decode(self, ids, **given):
        self.asked["decoded"] += len(ids)
        return self.tokenizer.decode(ids, **given)

    def apply_chat_template(self, messages, **given):
        self.asked["rendered"] += 1
        return self.tokenizer.apply_chat_template(messages, **given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_18_the_glue_of_turn_128_costs_what_that_of_turn_2_does(name):
    counting = Counting(tokenizer_of(name))
    tokens = TurnTokens(counting, tools=TOOLS, stop_ids=stop_ids_of(name))
    messages, costs = [ASKED], []
    for number in range(128):
        counting.asked.clear()
        turn, observation = call_of("x"), results_of(f"apple {number:03}")  # one that is not known yet
        seen = tokens.observed([end_of(name)], observation, message=turn, earlier=messages, most=64)
        messages += [turn, *seen.messages]
        costs.append(dict(counting.asked))
    assert costs[1] == costs[127]
    assert costs[1].keys() == {"characters"}  # nothing is rendered or decoded
