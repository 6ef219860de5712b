"""Calls of a judge's service over real sockets: every failure is counted and none is 0, budgets hold, nothing twice."""

import json
import re
import socket
import threading
import time

import pytest

from paceline.config.building import build_config
from paceline.errors import RewardError
from paceline.rewards.function import Grade, RewardContext
from paceline.rewards.judges.client import JudgeClient
from paceline.rewards.judges.prompts import VerdictRequest
from paceline.rewards.judges.settings import JudgeSettings, VerdictCache, spending_metrics
from paceline.rewards.resolving import resolve, source_files
from paceline.training.identity import graders
from tests.support.scripted_judge import ScriptedJudge, said, score, texts

KEY = "sk-canary-5d41402abc4b2a76"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Kernels are no matter here; a pause between tries is no more than a millisecond."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("paceline.rewards.judges.client.PAUSE_SECONDS", 0.001)
    return tmp_path / "cache" / "paceline" / "judges"


def judge(url, context=None, **parameters):
    given = {"model": "tiny", "timeout": 5, **parameters}
    name = f"judge:{url}({', '.join(f'{name}={value}' for name, value in given.items())})"
    return resolve(name, context or RewardContext(call_seconds=20.0))


def graded(function, completions, question="Q?", answers=None):
    count = len(completions)
    return function(
        prompts=[question] * count,
        completions=list(completions),
        answer=answers or [None] * count,
        prompt_messages=[None] * count,
    )


def values(grades):
    return [one.value if isinstance(one, Grade) else None for one in grades]


def spent(function):
    return spending_metrics(function.counts())


def by_length(number, body):
    """A judge whose score is the length of the completion."""
    return score(len(texts(body)["completion"]))


def test_a_verdict_becomes_the_share_of_the_scale():
    with ScriptedJudge(by_length) as service:
        function = judge(service.url)
        grades = graded(function, ["seven..", "", "ten......."], answers=["gold", None, None])
    assert values(grades) == [0.7, 0.0, 1.0]
    assert grades[0].note == "7 of 10: so it is"
    metrics = spent(function)
    assert metrics.pop("latency_mean") > 0
    assert metrics == {
        "verdicts": 3,
        "cached": 0,
        "calls": 3,
        "retries": 0,
        "unsaved": 0,
        "cache_hit_rate": 0.0,
        "failed": {},
        "tokens_read": 300,
        "tokens_written": 30,
        "agreement": None,
    }
    (first,) = [body for body in service.bodies if texts(body)["completion"] == "seven.."]
    assert texts(first) == {"question": "Q?", "reference answer": "gold", "completion": "seven.."}
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("tiny", 0.0, 512)
    assert first["response_format"]["json_schema"]["schema"]["properties"]["score"]["maximum"] == 10


def hang_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def cut_off(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("response", "kind", "calls", "why"),
    [
        ((500, b"oops"), "server", 3, "status 500: oops, in 3 tries"),
        ((503, b""), "server", 3, "status 503"),
        ((429, b""), "server", 3, "status 429"),
        ((401, b"bad key"), "rejected", 1, "status 401$"),
        ((404, b"no such model"), "rejected", 1, "status 404: no such model"),
        ((400, b"too long"), "rejected", 3, "status 400: too long"),  # one call by each form of the request
        (hang_up, "connection", 3, ""),
        (cut_off, "malformed", 3, "no response of the chat interface"),
        ((200, b"<html>"), "malformed", 3, "no response of the chat interface: <html>"),
        ((200, {"choices": []}), "malformed", 3, "no response of the chat interface"),
        (said(None), "malformed", 3, "a response without text"),
        (said("10"), "malformed", 3, "no object of reason and score: 10"),
        (said("ten"), "malformed", 3, "not one JSON object: ten"),
        (said('```json\n{"reason": "", "score": 1}\n```'), "malformed", 3, "not one JSON object"),
        (said({"reason": "", "score": 11}), "malformed", 3, "score is 11"),
        (said({"reason": "", "score": -1}), "malformed", 3, "score is -1"),
        (said({"reason": "", "score": True}), "malformed", 3, "score is true"),
        (said({"reason": "", "score": 7.0}), "malformed", 3, r"score is 7\.0"),
        (said({"reason": "", "score": "7"}), "malformed", 3, 'score is "7"'),
        (said({"score": 7}), "malformed", 3, "no object of reason and score"),
        (said({"reason": "", "score": 7, "more": 1}), "malformed", 3, "no object of reason and score"),
        (said('{"reason": "", "score": 1, "score": 10}'), "malformed", 3, "not one JSON object"),
        (said('{"reason": "", "score": NaN}'), "malformed", 3, "not one JSON object"),
        (said("[" * 100_000), "malformed", 3, "not one JSON object"),
        (said({"reason": "", "score": 7}, finish_reason="length"), "malformed", 3, "cut at 512 tokens"),
        (said(None, refusal="I will not"), "refused", 1, "the judge refused: I will not"),
        (said("", finish_reason="content_filter"), "refused", 1, "content_filter"),
    ],
)
def test_what_is_no_verdict_is_a_failure_of_its_kind_and_never_a_zero(response, kind, calls, why):
    with ScriptedJudge(lambda number, body: response) as service:
        function = judge(service.url, retries=2)
        (grade,) = graded(function, ["text"])
    assert isinstance(grade, RewardError)
    assert f": {kind}: " in str(grade)
    assert re.search(why, str(grade))
    metrics = spent(function)
    assert (len(service.bodies), metrics["calls"], metrics["failed"]) == (calls, calls, {kind: 1})
    assert metrics["retries"] == (2 if kind not in ("rejected", "refused") else 0)


def test_a_failure_that_passes_costs_a_try_and_leaves_its_verdict():
    script = [(500, b""), hang_up, said("ten"), score(4)]
    with ScriptedJudge(lambda number, body: script[number]) as service:
        function = judge(service.url, retries=3)
        assert values(graded(function, ["text"])) == [0.4]
    metrics = spent(function)
    assert (metrics["calls"], metrics["retries"], metrics["failed"]) == (4, 3, {})


@pytest.mark.long
def test_retry_after_is_waited_for_within_the_deadline_and_not_beyond():
    def busy(seconds):
        return lambda handler: handler.reply(503, b"", Retry_After=seconds)

    with ScriptedJudge(lambda number, body: score(4) if number else busy("1")) as service:
        started = time.monotonic()
        assert values(graded(judge(service.url), ["text"])) == [0.4]
        assert time.monotonic() - started >= 1.0
    with ScriptedJudge(lambda number, body: busy("3600")) as service:
        (grade,) = graded(judge(service.url, retries=9), ["text"])
    assert "server: status 503, which asks to wait 3600 seconds" in str(grade)
    assert len(service.bodies) == 1


@pytest.mark.long
def test_a_call_and_a_batch_end_at_their_deadlines_and_others_keep_their_verdicts():
    def silent_on_a(number, body):
        if texts(body)["completion"] == "a":
            service.released.wait(30)
        return score(3)

    with ScriptedJudge(silent_on_a) as service:
        function = judge(service.url, timeout=2, retries=1)
        late, fine = graded(function, ["a", "b"])
        assert "timeout: no response within 2 seconds, in 2 tries" in str(late)
        assert fine.value == 0.3
        assert spent(function)["failed"] == {"timeout": 1}
        # of the batch: one thread, so that what waits behind the silent call is not asked at all
        function = judge(service.url, RewardContext(call_seconds=0.3), timeout=30, concurrency=1)
        grades = graded(function, ["a", "c"])
        assert ["not asked and answered within the batch's 0.3 seconds" in str(one) for one in grades] == [True, True]
        assert spent(function)["failed"] == {"timeout": 2}


@pytest.mark.long
def test_a_response_that_comes_after_its_batch_is_kept():
    """It was paid for, so the next run finds it."""

    def late(number, body):
        service.released.wait(30)
        return score(3)

    with ScriptedJudge(late) as service:
        (grade,) = graded(judge(service.url, RewardContext(call_seconds=2)), ["a"])
        assert isinstance(grade, RewardError)
        service.released.set()
        for thread in [one for one in threading.enumerate() if one.name == "judge-0"]:
            thread.join(10)
        function = judge(service.url)
        assert values(graded(function, ["a"])) == [0.3]
        assert (spent(function)["cached"], len(service.bodies)) == (1, 1)


def test_no_more_calls_are_under_way_than_are_allowed():
    under_way, most, lock, room = set(), [], threading.Lock(), threading.Barrier(3)

    def counting(number, body):
        with lock:
            under_way.add(number)
            most.append(len(under_way))
        room.wait(10)  # until three are here
        with lock:
            under_way.discard(number)
        return score(1)

    with ScriptedJudge(counting) as service:
        assert values(graded(judge(service.url, concurrency=3), list("abcdefghi"))) == [0.1] * 9
    assert max(most) == 3


def test_headers_that_never_end_do_not_hold_a_batch():
    """Each read of a socket is in time, so that only the batch's deadline ends it."""

    def drip(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not service.released.wait(0.02):
            handler.wfile.write(b"X-More: 1\r\n")

    with ScriptedJudge(lambda number, body: drip) as service:
        (grade,) = graded(judge(service.url, RewardContext(call_seconds=0.5), timeout=0.4), ["a"])
    assert ": timeout: " in str(grade) or ": connection: " in str(grade)


def test_the_order_of_responses_changes_no_verdict(tmp_path, monkeypatch):
    completions = ["a" * (1 + number % 9) + str(number % 10) for number in range(12)]

    def grades(order):
        """Calls are held until all are there, and answered in this order."""
        turns = [threading.Event() for _ in completions]
        arrived = threading.Barrier(len(completions))

        def respond(number, body):
            arrived.wait(20)
            place = order[completions.index(texts(body)["completion"])]
            turns[place - 1].wait(20) if place else None
            turns[place].set()
            return by_length(number, body)

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(order[0])))
        with ScriptedJudge(respond) as service:
            function = judge(service.url, concurrency=16)
            return values(graded(function, completions)), spent(function)["calls"]

    expected = ([len(text) / 10 for text in completions], 12)
    assert grades(range(12)) == grades(range(11, -1, -1)) == expected


def test_a_budget_of_calls_is_kept_to_the_call_retries_among_them():
    with ScriptedJudge(lambda number, body: (500, b"") if number < 2 else score(5)) as service:
        function = judge(service.url, call_budget=5, retries=1, concurrency=8)
        grades = graded(function, [f"text {number}" for number in range(12)])
    assert len(service.bodies) == 5
    metrics = spent(function)
    assert metrics["calls"] == 5
    given = sum(value == 0.5 for value in values(grades))
    assert given == 3
    assert sum(metrics["failed"].values()) == 12 - given
    assert metrics["failed"]["budget"] >= 7
    assert any("budget: call_budget 5 is used up" in str(one) for one in grades)


def test_a_budget_of_tokens_is_never_exceeded():
    # 110 tokens are used per call; before it is made, it may take every byte of the request, 256 and the verdict's 20
    with ScriptedJudge(by_length) as service:
        function = judge(service.url, token_budget=5000, verdict_tokens=20, concurrency=1)
        grades = graded(function, [str(number) for number in range(99)])
    metrics = spent(function)
    used = metrics["tokens_read"] + metrics["tokens_written"]
    assert used == 110 * len(service.bodies) == 110 * (99 - metrics["failed"]["budget"])
    assert 0 < used <= 5000
    assert any("token_budget 5000 has" in str(one) for one in grades)


@pytest.mark.parametrize("tokens", [b"1e999", b"1" + b"0" * 400, b"-1", b"100000", b'"12"', b"null", b"true", b"[]"])
def test_a_number_of_tokens_that_cannot_be_is_not_believed(tokens):
    response = json.dumps({"choices": [{"message": {"content": json.dumps({"reason": "", "score": 7})}}]}).encode()
    usage = b', "usage": {"prompt_tokens": %b, "completion_tokens": 1}}' % tokens
    with ScriptedJudge(lambda number, body: (200, response[:-1] + usage)) as service:
        function = judge(service.url, token_budget=5000)
        assert values(graded(function, ["text"])) == [0.7]
    metrics = spent(function)
    assert (metrics["tokens_read"], metrics["tokens_written"]) == (0, 0)


def test_a_second_run_asks_nothing_and_neither_do_equal_completions(cache):
    with ScriptedJudge(by_length) as service:
        first = judge(service.url)
        assert values(graded(first, ["aaa", "bb", "aaa"])) == [0.3, 0.2, 0.3]
        assert len(service.bodies) == 2
        second = judge(service.url)
        assert values(graded(second, ["bb", "aaa", "c"])) == [0.2, 0.3, 0.1]
        assert len(service.bodies) == 3
        metrics = spent(second)
        assert (metrics["cached"], metrics["calls"], metrics["cache_hit_rate"]) == (2, 1, 2 / 3)
        # what a kill or a hand has left of a file is asked for again
        files = sorted(cache.rglob("*.json"))
        assert len(files) == 3
        files[0].write_text('{"response": "tor')
        files[1].write_text('{"response": "{}"}')
        graded(judge(service.url), ["aaa", "bb", "c"])
        assert len(service.bodies) == 5
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".json"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        *({"model": "other"}, {"rubric": "Another."}, {"scale": 5}, {"temperature": 1}, {"verdict_tokens": 9}),
        {"mode": "rank"},
    ],
)
def test_what_decides_a_verdict_decides_its_place_in_the_cache(change):
    def key(**given):
        one = {"model": "tiny", "rubric": "R", "scale": 10, "temperature": 0, "verdict_tokens": 512, "mode": "score"}
        one |= given
        request = VerdictRequest(
            mode=one["mode"], rubric=one["rubric"], question="Q", reference=None, completions=("a", "b"),
            scale=one["scale"], repeat=one.get("repeat", 0),
        )  # fmt: skip
        settings = JudgeSettings(
            model=one["model"], temperature=one["temperature"], verdict_tokens=one["verdict_tokens"]
        )
        return JudgeClient("http://h/v1", settings, VerdictCache()).key(request)

    assert key() == key() != key(**change)
    assert key(repeat=1) != key()


def test_a_disk_that_is_full_costs_the_cache_and_no_verdict(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory belongs")
    with ScriptedJudge(by_length) as service:
        function = judge(service.url)
        assert values(graded(function, ["aaa"])) == [0.3]
    assert spent(function)["unsaved"] == 1


def test_a_service_without_a_schema_or_with_other_fields_is_asked_in_its_own_form():
    def strict(number, body):
        return (400, b"unknown field") if "response_format" in body else score(1)

    def reasoning(number, body):
        wrong = "temperature" in body or "max_tokens" in body or "max_completion_tokens" not in body
        return (422, b"unsupported") if wrong else score(2)

    for service_kind, tried, value in ((strict, 3, 0.1), (reasoning, 2, 0.2)):
        with ScriptedJudge(service_kind) as service:
            function = judge(service.url)
            assert values(graded(function, ["a"])) == [value]
            assert values(graded(function, ["b"])) == [value]
            assert len(service.bodies) == tried + 1  # the form is found once


def test_a_key_goes_into_the_header_and_nowhere_else(cache, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def telling(number, body):
        echo = f"you sent {service.keys[number]}"
        said_so = said({"reason": f"{echo} {KEY}", "score": 7})
        return [(500, echo.encode()), (401, echo.encode()), said(echo), said_so][number]

    with ScriptedJudge(telling) as service:
        function = judge(service.url, key_env="JUDGE_KEY", retries=0)
        grades = [graded(function, [text])[0] for text in "abcd"]
        sentence = function.describe()
    assert service.keys == [f"Bearer {KEY}"] * 4
    assert grades[3].value == 0.7
    assert KEY not in repr(grades) + "".join(map(str, grades)) + sentence + json.dumps(spent(function))
    assert "the key goes over it unencrypted" in sentence
    assert not [path for path in cache.rglob("*.json") if KEY.encode() in path.read_bytes()]


def test_a_rubric_may_be_a_file_which_is_part_of_the_run(tmp_path):
    rubric = tmp_path / "rubric.md"
    rubric.write_text("Be brief, and (always) right.\n")
    with ScriptedJudge(by_length) as service:
        function = judge(service.url, rubric=rubric)
        graded(function, ["a"])
        name = f"judge:{service.url}(model=tiny, rubric={rubric})"
    assert (
        "Judge them by this rubric alone:\n\nBe brief, and (always) right.\n"
        in service.bodies[0]["messages"][0]["content"]
    )
    assert source_files(name) == [rubric]
    config = build_config({"model": "embedded", "dataset": "arithmetic", "reward_funcs": [name]})
    before = graders(config)["reward_funcs"][name]
    rubric.write_text("Be long.")
    assert graders(config)["reward_funcs"][name] != before
    assert source_files("judge:http://h:1/v1(model=tiny, rubric=be brief)") == []


def test_the_identity_of_a_model_that_the_run_serves_is_its_files(tmp_path):
    run, base = tmp_path / "run", tmp_path / "base"
    for folder in (run / "final", base):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
    (run / "config.yaml").touch()
    (base / "config.json").write_text("{}")
    name = f"judge:{run}(rubric=be brief)"
    config = build_config({"model": "embedded", "dataset": "arithmetic", "reward_funcs": [name]})
    before = graders(config)["reward_funcs"][name]
    (run / "final" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert {one.name for one in source_files(name)} == {"model.safetensors", "adapter_config.json", "config.json"}
    adapted = graders(config)["reward_funcs"][name]
    (base / "model.safetensors").write_bytes(b"others")
    assert len({before, adapted, graders(config)["reward_funcs"][name]}) == 3
    file = tmp_path / "judge.gguf"
    file.touch()
    assert (source_files(f"judge:{file}"), source_files("judge:embedded")) == ([file], [])


def test_a_service_is_looked_at_before_the_run(monkeypatch):
    with ScriptedJudge(by_length) as service:
        sentence = judge(service.url, call_budget=2000).describe()
        assert f"judge tiny at {service.url}, mode score: at most 2,000 calls in each process" in sentence
        assert "it lists tiny and not other" in judge(service.url, model="other").describe()
        url = service.url
        assert service.bodies == []
    with pytest.raises(RewardError, match=r"does not respond: .*; check that the service runs there"):
        judge(url).describe()
    with ScriptedJudge(by_length, models=401) as service, pytest.raises(RewardError, match="responds with 401; check"):
        judge(service.url).describe()
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(RewardError, match="key_env=NO_SUCH_KEY must name an environment variable with the service's"):
        judge(service.url, key_env="NO_SUCH_KEY").describe()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("judge:http://h/v1", "model must name the model at the service; add model=NAME, got ''"),
        ("judge:localhost:8000/v1(model=x)", "or by a directory or Hub name of a model that the run serves itself"),
        (
            "judge:models/qwen(model=x)",
            "judge:models/qwen: model is of a judge at an address, and this model is served",
        ),
        ("judge:models/qwen(key_env=KEY)", "key_env is of a judge at an address"),
        ("judge:models/qwen(prompt_tokens=0)", "prompt_tokens must be at least 1, got 0"),
        ("judge:http://h/v1(model=x, prompt_tokens=9)", "prompt_tokens is of a model that the run serves itself"),
        ("judge:http://h:99999/v1(model=x)", "must be followed by the address of a service"),
        ("judge:http://[h/v1(model=x)", "must be followed by the address of a service"),
        ("judge:(model=x)", "must be followed by the address of a service"),
        ("judge:http://me:word@h/v1(model=x)", r"judge:http://h: the address must have no password and no query"),
        ("judge:http://h/v1?key=word(model=x)", "no password and no query"),
        ("judge:http://h/v1(model=x, api_key=word)", "has no parameter api_key, as options are recorded with the run"),
        ("judge:http://h/v1(model=x, key_env=sk-word)", "key_env must be the name of an environment variable"),
        ("judge:http://h/v1(model=x, modle=y)", "has no parameter 'modle'; did you mean mode or model"),
        ("judge:http://h/v1(model=x, mode=best)", "mode must be one of score, pairwise, rank, got 'best'"),
        ("judge:http://h/v1(model=x, repeats=3)", "repeats must be 1 at temperature 0, where the same texts"),
        ("judge:http://h/v1(model=x, scale=0)", "scale must be at least 1, got 0"),
        ("judge:http://h/v1(model=x, timeout=0)", r"timeout must be above 0, got 0\.0"),
        ("judge:http://h/v1(model=x, retries=-1)", "retries must be at least 0, got -1"),
        ("judge:http://h/v1(model=x, call_budget=0)", "call_budget must be at least 1, got 0"),
        ("judge:http://h/v1(model=x, rubric=no/such.md)", r"rubric no/such\.md cannot be read .*; check the path"),
    ],
)
def test_a_judge_that_cannot_be_is_refused_in_a_sentence_without_its_secret(name, message):
    with pytest.raises(RewardError, match=message) as refusal:
        resolve(name)
    assert "word" not in str(refusal.value).replace("password", "")
