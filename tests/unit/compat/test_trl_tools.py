"""TRL's tools, environments and rollout_func through GRPOTrainer: a tiny model trains, an engine is dictated."""

import asyncio
import json
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from paceline import GRPOConfig, GRPOTrainer
from paceline.compat.trl.environments import given_environments
from paceline.engines import Request, Sampling
from paceline.errors import ConfigError, DataError, TrainingError
from paceline.types import Completion
from tests.support.tiny import tiny_model, tiny_tokenizer

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|end|>\n"
    "{% endif %}"
    "{%- for message in messages %}{%- if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message.content }}\n</tool_response><|end|>\n{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endif %}<|end|>\n{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = tiny_tokenizer(chat_template=TEMPLATE)
END = 258


def metrics_of(trainer):
    return [json.loads(line) for line in Path(trainer.args.output_dir, "metrics.jsonl").read_text().splitlines()]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class DictatedEngine:
    """Says what `script` has for a prompt and the index of the completion within the call."""

    takes_further, path, path_reason = False, "dictated", "a test wants it"

    def __init__(self, script: Callable[[str, int], str]) -> None:
        self.script, self.policy_version = script, 0
        self.prompts: list[str] = []

    def take_weights(self, policy_version: int) -> None:
        self.policy_version = policy_version

    def rest(self) -> None:
        pass

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: Any = None, further: Any = None
    ) -> list[tuple[Completion, ...]]:
        groups, count = [], 0
        for request in requests:
            prompt, group = TOKENIZER.decode(request.prompt_ids), []
            limits = request.limits or (sampling.max_completion_length,) * len(request.keys)
            for limit in limits:
                self.prompts.append(prompt)
                tokens = tuple([*ids_of(self.script(prompt, count)), END][:limit])
                count += 1
                one = Completion(
                    token_ids=tokens,
                    logprobs=(-1.0,) * len(tokens),
                    finish_reason="stop" if tokens[-1] == END else "length",
                    text=TOKENIZER.decode(list(tokens), skip_special_tokens=True),
                    policy_version=self.policy_version,
                )
                group.append(one)
            groups.append(tuple(group))
        return groups


def model() -> PreTrainedModel:
    made = tiny_model()
    made.config.max_position_embeddings = 4096
    return made


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Makes a trainer whose engine follows a script, and keeps the engine as `trainer.engine`."""

    def make(script: Callable[[str, int], str], *, rows: Any = None, args: Any = None, **given: Any) -> GRPOTrainer:
        engine = DictatedEngine(script)
        monkeypatch.setattr("paceline.training.backend.make_engine", lambda *parts, **named: engine)
        settings = {
            "per_device_train_batch_size": 3,
            "num_generations": 3,
            "max_completion_length": 400,
            "max_steps": 1,
            "logging_steps": 1,
            "report_to": "none",
            **(args or {}),
        }
        trainer = GRPOTrainer(
            model=model(),
            processing_class=given.pop("processing_class", TOKENIZER),
            args=GRPOConfig(output_dir=str(tmp_path / "run"), **settings),
            train_dataset=rows,
            **given,
        )
        trainer.engine = engine
        return trainer

    return make


def question(text: str = "3 times 4?", **columns: Any) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}], **columns}


def multiply(a: int, b: int) -> int:
    """
    Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


async def later(a: int) -> float:
    """
    Halve a number, later.

    Args:
        a: The number.
    """
    await asyncio.sleep(0)
    return a / 2


def trls_script(prompt: str, index: int) -> str:
    """Three completions, of which two call a tool, one of them wrongly: those of TRL's own test."""
    if "<tool_response>" in prompt:
        return "Done!"
    return (call("multiply", a=3, b=4), call("multiply", a=3, c=4), "I don't know")[index]


class Recorder:
    """A reward function that keeps what it is given."""

    __name__ = "recorder"

    def __call__(self, **given: Any) -> list[float]:
        self.given = given
        return [float(len(one)) for one in given["completions"]]


class Counter:
    """TRL's environment: it counts, and the count is its reward."""

    def reset(self, **row: Any) -> str:
        self.count, self.row = 0, row
        return " Count."

    def increment(self, step: int) -> int:
        """
        Add to the count.

        Args:
            step: What to add.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count)


class Echo:
    """An environment without a reward."""

    def reset(self, **row: Any) -> None:
        self.row = row

    def shout(self, text: str) -> str:
        """
        Shout a text.

        Args:
            text: The text.
        """
        return text.upper()


def counting(prompt: str, index: int) -> str:
    return (
        "Done!" if "<tool_response>" in prompt else (call("increment", step=1), call("decrement", step=1), "No")[index]
    )


def last_log(trainer: GRPOTrainer) -> dict[str, Any]:
    return next(line for line in reversed(trainer.state.log_history) if "reward" in line)


# --- tools


def test_tools_are_called_and_read_as_in_trl(trained):
    reward = Recorder()
    trainer = trained(trls_script, rows=[question()], reward_funcs=reward, tools=[multiply])
    trainer.train()
    right, wrong, plain = reward.given["completions"]
    assert [message["role"] for message in right] == ["assistant", "tool", "assistant"]
    assert right[0]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": {"a": 3, "b": 4}}
    assert (right[1]["name"], right[1]["content"], right[2]["content"]) == ("multiply", "12", "Done!")
    assert wrong[1]["content"] == str({"error": "multiply() got an unexpected keyword argument 'c'"})
    assert plain == [{"role": "assistant", "content": "I don't know"}]
    # all tokens, the tool's and the template's among them
    written = "\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|end|>\n<|im_start|>assistant\n"
    whole = [*ids_of(call("multiply", a=3, b=4)), END, *ids_of(written), *ids_of("Done!"), END]
    assert TOKENIZER.decode(reward.given["completion_ids"][0]) == TOKENIZER.decode(whole)
    assert "environments" not in reward.given
    log = last_log(trainer)
    assert log["tools/call_frequency"] == pytest.approx(2 / 3)
    assert log["tools/failure_frequency"] == pytest.approx(1 / 2)
    assert "rewards/tools/mean" not in log
    assert [tool.__name__ for tool in trainer.tools] == ["multiply"]


def test_prompts_show_the_tools(trained):
    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), tools=[multiply])
    trainer.train()
    assert trainer.engine.prompts[0].count('"description": "Multiply two numbers."') == 1


@pytest.mark.long
@pytest.mark.parametrize(("iterations", "turns"), [(0, 1), (1, 2), (None, 3)])
def test_so_many_turns_may_call_tools(trained, iterations, turns):
    def script(prompt: str, index: int) -> str:
        return "Done!" if prompt.count("<tool_response>") == 2 else call("multiply", a=3, b=4)

    reward = Recorder()
    args = {"max_tool_calling_iterations": iterations}
    trainer = trained(script, rows=[question()], reward_funcs=reward, tools=[multiply], args=args)
    trainer.train()
    said = reward.given["completions"][0]
    assert [message["role"] for message in said].count("assistant") == turns
    assert said[-1]["role"] == "assistant"
    assert last_log(trainer)["tools/call_frequency"] == turns - 1


def test_results_come_in_the_order_of_the_calls(trained):
    def script(prompt: str, index: int) -> str:
        return "Done!" if "<tool_response>" in prompt else f"{call('later', a=3)}\n{call('multiply', a=3, b=4)}"

    reward = Recorder()
    trained(script, rows=[question()], reward_funcs=reward, tools=[multiply, later]).train()
    assert [message["content"] for message in reward.given["completions"][0][1:3]] == ["1.5", "12"]


def test_a_call_that_cannot_be_read_is_text(trained):
    reward = Recorder()
    trainer = trained(
        lambda prompt, index: "<tool_call>\n{a: 3}\n</tool_call>",
        rows=[question()],
        reward_funcs=reward,
        tools=[multiply],
    )
    trainer.train()
    assert [len(one) for one in reward.given["completions"]] == [1, 1, 1]
    assert last_log(trainer)["tools/call_frequency"] == 0


def test_a_lost_connection_is_no_answer_for_the_model(trained):
    def look_up(word: str) -> str:
        """
        Look up a word.

        Args:
            word: The word.
        """
        raise ConnectionError("the server is gone")

    trainer = trained(
        lambda prompt, index: call("look_up", word="a") if index == 0 else "I know",
        rows=[question()],
        reward_funcs=Recorder(),
        tools=[look_up],
        args={"max_reward_failure_rate": 1.0},
    )
    trainer.train()
    (record,) = metrics_of(trainer)
    assert record["episode_ends"] == {"failed": 1, "done": 2}
    assert record["rewards"]["recorder"]["count"] == 2


@pytest.mark.long
def test_a_tool_that_hangs_is_left_behind(trained):
    never = threading.Event()

    def wait(word: str) -> str:
        """
        Wait.

        Args:
            word: Any.
        """
        while not never.wait(0.01):  # an interrupt arrives at the next instruction
            pass
        return word

    trainer = trained(
        lambda prompt, index: call("wait", word="a") if index == 0 else "I know",
        rows=[question()],
        reward_funcs=Recorder(),
        tools=[wait],
        args={"max_reward_failure_rate": 1.0, "environment_timeout": [3.0, 30.0]},
    )
    trainer.train()
    (record,) = metrics_of(trainer)
    assert record["episode_ends"] == {"timed_out": 1, "done": 2}


def test_the_template_gets_every_switch_in_each_turn(trained):
    reward, template = Recorder(), TEMPLATE.replace("assistant\n{% endif %}", "assistant\n{{ effort }}{% endif %}")
    template = template.replace("role }}\n", "role }}\n{% if message.role == 'assistant' %}{{ effort }}{% endif %}", 1)
    tokenizer = tiny_tokenizer(chat_template=template)
    trainer = trained(
        trls_script,
        rows=[question()],
        reward_funcs=reward,
        tools=[multiply],
        processing_class=tokenizer,
        args={"chat_template_kwargs": {"effort": "low\n"}},
    )
    trainer.train()
    first, *_, last = trainer.engine.prompts
    assert first.endswith("<|im_start|>assistant\nlow\n")
    assert last.endswith("</tool_response><|end|>\n<|im_start|>assistant\nlow\n")
    assert last.count("low") == 2


# --- environments


def test_an_environment_adds_to_the_prompt_and_gives_a_reward(trained):
    reward = Recorder()
    trainer = trained(
        counting,
        rows=[question("Hi.", level=3)],
        reward_funcs=reward,
        environment_factory=Counter,
        args={"reward_weights": [0.5]},
    )
    assert trainer.reward_func_names == ["recorder", "Counter"]
    assert trainer.reward_weights.tolist() == [0.5, 1.0]
    assert [tool.__name__ for tool in trainer.tools] == ["increment"]
    trainer.train()
    assert trainer.engine.prompts[0].endswith("<|im_start|>user\nHi. Count.<|end|>\n<|im_start|>assistant\n")
    assert [one.count for one in reward.given["environments"]] == [1, 0, 0]
    assert all(type(one) is Counter for one in reward.given["environments"])
    assert [one.count for one in trainer.environments] == [1, 0, 0]
    assert reward.given["environments"][0].row == question("Hi.", level=3)
    assert reward.given["prompts"][0] == [{"role": "user", "content": "Hi. Count."}]
    log = last_log(trainer)
    assert log["rewards/Counter/mean"] == pytest.approx(1 / 3)
    assert log["reward"] == pytest.approx((0.5 * (3 + 3 + 1) + 1) / 3)
    assert log["tools/failure_frequency"] == pytest.approx(1 / 2)


def test_the_environments_reward_may_be_the_only_one(trained):
    trainer = trained(counting, rows=[question()], environment_factory=Counter)
    assert trainer.reward_func_names == ["Counter"]
    trainer.train()
    assert last_log(trainer)["reward"] == pytest.approx(1 / 3)


def test_the_column_chooses_the_environment(trained):
    def script(prompt: str, index: int) -> str:
        if "<tool_response>" in prompt:
            return "Done!"
        return call("increment", step=2) if "increment" in prompt else call("shout", text="hi")

    reward = Recorder()
    trainer = trained(
        script,
        rows=[{"environment": "counter"}, {"environment": "echo"}, {"environment": "again"}],
        reward_funcs=reward,
        environment_factory={"counter": Counter, "again": Counter, "echo": Echo},
        args={"per_device_train_batch_size": 6, "num_generations": 2, "shuffle_dataset": False},
    )
    assert trainer.reward_func_names == ["recorder", "Counter"]  # one for both of its names
    functions = {name: [one.__name__ for one in tools] for name, tools in trainer._env_tools.items()}
    assert functions == {"counter": ["increment"], "again": ["increment"], "echo": ["shout"]}
    kinds = {name: [type(one) for one in pool] for name, pool in trainer._environment_pool.items()}
    assert kinds == {"counter": [Counter], "again": [Counter], "echo": [Echo]}  # the object that was looked at
    trainer.train()
    shown = [re.findall(r'"name": "(\w+)"', prompt.split("<|end|>")[0]) for prompt in trainer.engine.prompts[:6]]
    assert sorted(shown) == [["increment"]] * 4 + [["shout"]] * 2  # in the order in which they have begun
    environments = reward.given["environments"]
    assert [type(one) for one in environments] == [Counter, Counter, Echo, Echo, Counter, Counter]
    assert all(one.row == {} for one in environments)
    assert [one[1]["content"] for one in reward.given["completions"]] == ["2", "2", "HI", "HI", "2", "2"]
    assert last_log(trainer)["rewards/Counter/mean"] == 2.0
    scored = trainer.reward_funcs[-1]
    assert scored(environments=[environments[0], environments[2]]) == [2.0, None]


@pytest.mark.long
def test_an_environment_may_own_the_data(trained):
    trainer = trained(counting, environment_factory=Counter, args={"max_steps": 2})
    trainer.train()
    assert trainer.engine.prompts[0].endswith("<|im_start|>user\n Count.<|end|>\n<|im_start|>assistant\n")


def test_plain_functions_run_in_the_thread_that_trains(trained):
    connection, local = sqlite3.connect(":memory:"), threading.local()  # both belong to this thread
    local.name, here, seen = "mine", threading.get_ident(), []

    def limited(a: int) -> str:
        """
        Look up a number within a limit of time.

        Args:
            a: The number.
        """
        before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        (found,) = connection.execute("select ?", (a,)).fetchone()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        seen.append((local.name, threading.get_ident() == here, asyncio.new_event_loop().run_until_complete(later(a))))
        return f"{found}"

    class Connected(Counter):
        def __init__(self) -> None:
            seen.append((local.name, threading.get_ident() == here, 0.0))

        def reset(self, **row: Any) -> str:
            connection.execute("select 1")
            return super().reset(**row)

        def get_reward(self) -> float:
            return float(connection.execute("select 3").fetchone()[0])

    def script(prompt: str, index: int) -> str:
        return "Done!" if "<tool_response>" in prompt else f"{call('limited', a=4)}\n{call('later', a=4)}"

    reward = Recorder()
    trainer = trained(
        script,
        rows=[question()],
        reward_funcs=reward,
        tools=[limited, later],  # an async one waits on the event loop of TRL's kind
        environment_factory=Connected,
    )
    trainer.train()
    assert [message["content"] for message in reward.given["completions"][0][1:3]] == ["4", "2.0"]
    assert set(seen) == {("mine", True, 0.0), ("mine", True, 2.0)}
    assert last_log(trainer)["rewards/Connected/mean"] == 3
    assert last_log(trainer)["tools/failure_frequency"] == 0


def test_conversations_go_on_side_by_side_where_everything_is_async(trained):
    both = asyncio.Event()
    waiting = []

    async def meet(a: int) -> str:
        """
        Wait for the other conversation.

        Args:
            a: Any.
        """
        waiting.append(a)
        if len(waiting) == 3:
            both.set()
        await both.wait()
        return "met"

    reward = Recorder()
    script = lambda prompt, index: "Done!" if "<tool_response>" in prompt else call("meet", a=index)  # noqa: E731
    trained(script, rows=[question()], reward_funcs=reward, tools=[meet]).train()
    assert [turns[1]["content"] for turns in reward.given["completions"]] == ["met"] * 3


@pytest.mark.parametrize("others", [[], [multiply]], ids=["episodes side by side", "one after another"])
def test_tools_and_rewards_share_a_client_and_background_tasks_go_on_between_steps(trained, others):
    kept, tasks, went_on = list[Any](), list[Any](), threading.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async def asked(text: str) -> str:
        if not kept:
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            kept.extend(await asyncio.open_connection(*server.sockets[0].getsockname()))
            kept.append(asyncio.Lock())
        reader, writer, lock = kept
        async with lock:
            writer.write(f"{text}\n".encode())
            return (await reader.readline()).decode().strip()

    async def ask(a: int) -> str:
        """
        Ask the server.

        Args:
            a: Any.
        """
        return await asked(f"said {a}")

    async def later() -> None:
        await asyncio.sleep(0)
        went_on.set()

    async def reward(completions: list[Any], **columns: Any) -> list[float]:
        tasks.append(asyncio.create_task(later()))
        return [float(await asked(str(len(turns))) == "3") for turns in completions]

    script = lambda prompt, index: "Done!" if "<tool_response>" in prompt else call("ask", a=index)  # noqa: E731
    reader = Recorder()
    trainer = trained(script, rows=[question()], reward_funcs=[reader, reward], tools=[ask, *others])
    trainer.train()
    assert [turns[1]["content"] for turns in reader.given["completions"][0:3]] == ["said 0", "said 1", "said 2"]
    assert last_log(trainer)["rewards/reward/mean"] == 1
    assert went_on.wait(60)


@pytest.mark.long
def test_objects_are_made_once_and_keep_their_thread(trained):
    class Table(Counter):
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            self.connection = sqlite3.connect(":memory:")  # of the thread that made it alone
            self.connection.execute("create table steps (step integer)")

        def reset(self) -> str:
            self.connection.execute("delete from steps")
            return super().reset()

        def increment(self, step: int) -> int:
            """
            Add to the count.

            Args:
                step: What to add.
            """
            self.connection.execute("insert into steps values (?)", (step,))
            return super().increment(step)

        def get_reward(self) -> float:
            return float(self.connection.execute("select count(*) from steps").fetchone()[0])

    trainer = trained(counting, rows=[question()], environment_factory=Table, args={"max_steps": 3})
    trainer.train()
    assert Table.made == 3
    assert last_log(trainer)["rewards/Table/mean"] == pytest.approx(1 / 3)


@pytest.mark.long
def test_an_object_that_begins_at_its_second_attempt_is_listed_once_and_in_its_place(trained):
    class Reluctant(Counter):
        made = 0

        def __init__(self) -> None:
            self.number, type(self).made = type(self).made, type(self).made + 1

        def reset(self) -> str:
            if self.number == 1:
                raise OSError("no room")
            return super().reset()

    reward = Recorder()
    trainer = trained(counting, rows=[question()], reward_funcs=reward, environment_factory=Reluctant)
    trainer.train()
    assert Reluctant.made == 4
    assert sorted(one.number for one in trainer.environments) == [0, 2, 3]
    assert trainer.environments == reward.given["environments"]


def test_a_prompt_that_is_too_long_is_refused_and_not_cut_in_a_conversation(trained):
    args = {"max_prompt_length": 8}
    with pytest.raises(
        DataError, match=r"has 300 tokens, above the 8 of a conversation \(1 of 1 rows are\); raise max"
    ):
        trained(counting, rows=[question()], environment_factory=Counter, args=args)


def test_environments_are_those_of_a_ranks_own_step(trained):
    """Another rank than the first hears of a step by `begin_step`."""
    trainer = trained(counting, rows=[question()], environment_factory=Counter, args={"max_steps": 2})
    trainer.train()
    last = trainer.environments
    assert len(last) == 3
    trainer._observer.be_at({"global_step": 2})
    assert trainer.environments == last
    trainer._observer.begin_step({"global_step": 3})
    assert (trainer.environments, trainer.state.global_step) == ([], 3)


def test_async_environments_are_awaited(trained):
    class Slow(Counter):
        async def reset(self, **row: Any) -> str:
            return super().reset(**row)

        async def get_reward(self) -> float:
            return 2.0 * self.count

    trainer = trained(counting, rows=[question()], environment_factory=Slow)
    trainer.train()
    assert last_log(trainer)["rewards/Slow/mean"] == pytest.approx(2 / 3)


@pytest.mark.long
def test_a_trainer_evaluates_and_trains_again(trained):
    trainer = trained(
        counting, rows=[question()], eval_dataset=[question("Why?")], environment_factory=Counter, args={"max_steps": 1}
    )
    before = trainer.evaluate()
    trainer.train()
    assert (
        trainer.evaluate()["eval_rewards/Counter/mean"] == before["eval_rewards/Counter/mean"] == pytest.approx(1 / 3)
    )
    trainer.train()
    assert last_log(trainer)["rewards/Counter/mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"tools": [multiply]}, ConfigError, "`train_dataset` is required"),
        ({"tools": [3]}, ConfigError, r"tools\[0\] must be a function, got a int"),
        ({"tools": [multiply, multiply]}, ConfigError, "different names, got multiply twice"),
        ({"tools": [lambda a: a], "rows": [question()]}, ConfigError, "tool"),
        ({"environment_factory": 3}, ConfigError, "must be a class or function that makes an environment"),
        ({"environment_factory": {}}, ConfigError, "must be a class or function that makes an environment"),
        ({"environment_factory": dict}, ConfigError, "must define a callable `reset`"),
        (
            {"environment_factory": "gues:5", "rows": [question()]},
            ConfigError,
            "environment_factory gues:5: there is no such environment; did you mean 'guess'",
        ),
        ({"environment_factory": ["guess", Counter]}, ConfigError, "must have addresses alone in a list"),
        ({"environment_factory": "guess", "tools": [multiply]}, ConfigError, "tools must be None with addresses"),
        ({"environment_factory": "guess"}, ConfigError, "`train_dataset` is required"),
        ({"environment_factory": {"a": Counter, "b": Echo}}, ConfigError, "requires a `train_dataset`"),
        ({"environment_factory": Counter, "args": {"max_steps": -1}}, ConfigError, "max_steps must be above 0 without"),
        (
            {"environment_factory": {"counter": Counter}, "rows": [question(environment="unknown")]},
            DataError,
            "'unknown', which is not among the environments of environment_factory: counter",
        ),
        ({"environment_factory": Echo, "rows": [question()], "reward_funcs": None}, ConfigError, "No reward source"),
        (
            {"environment_factory": Counter, "rows": [{"prompt": "Hi"}]},
            DataError,
            "row train:1: its prompt is plain text",
        ),
        ({"tools": [multiply], "rollout_func": print}, ConfigError, "rollout_func must be None with tools"),
        ({"rows": [question()], "args": {"max_turn_length": 9}}, ConfigError, "max_turn_length"),
        (
            {"tools": [multiply], "rows": [question()], "args": {"max_tool_calling_iterations": -1}},
            ConfigError,
            "max_tool_calling_iterations must be at least 0, got -1",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(trained, given, error, words):
    with pytest.raises(error, match=words):
        trained(counting, **{"reward_funcs": Recorder(), **given})


def test_an_address_gives_the_environment_of_the_command_line(trained):
    reward, args = Recorder(), {"max_tool_calling_iterations": 4}
    trainer = trained(
        lambda prompt, index: str(prompt.count("assistant")),  # 1, then 2, then 3
        rows=[question()],
        reward_funcs=reward,
        environment_factory="guess:5",
        args=args,
    )
    trainer.train()
    assert trainer.reward_func_names == ["recorder", "guess"]
    assert trainer.state.log_history[0]["rewards/guess/mean"] == 1.0
    assert "environments" not in reward.given


def test_classes_of_one_name_have_rewards_of_their_own():
    first, second = (type("Game", (Counter,), {}) for _ in range(2))
    found = given_environments(None, {"a": first, "b": second}, seconds=5.0)
    assert found is not None
    assert {name: spec.name for name, spec in found.specs.items()} == {"a": "Game", "b": "Game_2"}


# --- rollout_func


def turns_of(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
    """Two sampled runs with a read one between: 'a', then 'bc' of the environment, then 'd' and the end."""
    trainer.asked = prompts
    ids = [[*ids_of("a"), *ids_of("bc"), *ids_of("d"), END] for _ in prompts]
    return {
        "prompt_ids": [ids_of("Hi") for _ in prompts],
        "completion_ids": ids,
        "logprobs": [[-0.1, 0.0, 0.0, -0.2, -0.3] for _ in prompts],
        "env_mask": [[1, 0, 0, 1, 1] for _ in prompts],
        "won": [float(number) for number, _ in enumerate(prompts)],
        "seed": 7,
    }


def test_a_rollout_func_samples_in_the_place_of_the_engine(trained):
    reward = Recorder()
    trainer = trained(
        trls_script, rows=[question("Hi", level=2)], reward_funcs=reward, rollout_func=turns_of, args={"beta": 0.1}
    )
    trainer.train()
    assert trainer.asked == [question("Hi")["prompt"]] * 3
    assert trainer.engine.prompts == []
    given = reward.given
    assert (given["won"], given["seed"], given["level"]) == ([0.0, 1.0, 2.0], [7, 7, 7], [2, 2, 2])
    assert given["completions"][0] == [{"role": "assistant", "content": "abcd"}]
    assert given["completion_ids"][0] == [*ids_of("abcd"), END]
    (group,) = trainer._observer.job.backend.sampler.rounds.sample([(trainer._job.inputs.tasks.tasks[0], 0)]).groups
    one = group.rollouts[0].trajectory
    assert [(span.by, len(span.tokens), span.logprobs) for span in one.spans[1:]] == [
        ("policy", 1, (-0.1,)),
        ("environment", 2, ()),
        ("policy", 2, (-0.2, -0.3)),
    ]
    assert group.task.prompt_ids == tuple(ids_of("Hi"))
    assert last_log(trainer)["completions/mean_length"] == 3


def test_what_a_rollout_func_reads_first_and_last_is_no_completion(trained):
    def rollouts(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        size = len(prompts)
        return {
            "prompt_ids": [ids_of("Hi")] * size,
            "completion_ids": [ids_of("abc")] * size,
            "logprobs": [[-0.5]] * size,  # of the sampled token alone
            "env_mask": [[0, 1, 0]] * size,
        }

    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), rollout_func=rollouts)
    (group,) = trainer._job.backend.sampler.rounds.sample([(trainer._job.inputs.tasks.tasks[0], 0)]).groups
    one = group.rollouts[0].trajectory
    assert (group.task.prompt_ids, one.completion_ids) == (tuple(ids_of("Hia")), tuple(ids_of("b")))
    assert (one.logprobs, one.finish_reason, one.environment) == ((-0.5,), "length", None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": ...}, r"rollout_func must return keys \['logprobs'\] in its output dict"),
        ({"logprobs": [None] * 3}, "one finite number per token in `logprobs`, got None for completion 0 of 5 tokens"),
        ({"logprobs": [[-1.0, float("nan"), 0, 0, 0]] * 3}, "one finite number per token"),
        ({"prompt_ids": [[1]]}, "one entry per prompt that it is given in `prompt_ids`, 3 here, got 1"),
        ({"env_mask": [[0] * 5] * 3}, "a token that the model sampled, got none"),
        ({"env_mask": [[1]] * 3}, "env_mask of completion 0 must have 5 numbers, got 1"),
        ({"completion_ids": [[]] * 3}, "must give tokens in `completion_ids`"),
    ],
)
def test_what_a_rollout_func_must_return(trained, changes, words):
    def rollouts(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        output = {**turns_of(prompts, trainer), **changes}
        mask = {"env_mask": [[1] * 5] * 3} if "logprobs" in changes else {}
        return {name: value for name, value in {**output, **mask}.items() if value is not ...}

    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), rollout_func=rollouts)
    with pytest.raises(ConfigError, match=words):
        trainer.train()


def test_an_error_of_a_rollout_func_ends_the_run(trained):
    def broken(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        raise TrainingError("no room")

    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), rollout_func=broken)
    with pytest.raises(TrainingError, match="no room"):
        trainer.train()


def test_a_rollout_func_may_be_replaced_but_not_taken_away(trained):
    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), rollout_func=turns_of)
    trainer.rollout_func = lambda prompts, trainer: {**turns_of(prompts, trainer), "seed": 8}
    trainer.train()
    assert trainer._job.sources[0].given["seed"] == [8, 8, 8]
    trainer.rollout_func = None
    with pytest.raises(ConfigError, match="rollout_func must be given to the constructor"):
        trainer.train()


# --- `_generate`, one completion of each prompt


def test_a_program_may_sample_conversations(trained):
    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), tools=[multiply])
    prompt = question("4 times 3?")["prompt"]
    found = trainer._generate([prompt, prompt, prompt])
    prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images = found
    assert [TOKENIZER.decode(ids) for ids in prompt_ids] == trainer.engine.prompts[:3]
    assert "4 times 3?" in trainer.engine.prompts[0]
    assert [[message["role"] for message in one] for one in completions] == [
        ["assistant", "tool", "assistant"],
        ["assistant", "tool", "assistant"],
        ["assistant"],
    ]
    assert (completions[0][1]["content"], completions[0][2]["content"]) == ("12", "Done!")
    first, last = [*ids_of(call("multiply", a=3, b=4)), END], [*ids_of("Done!"), END]
    between = len(completion_ids[0]) - len(first) - len(last)
    assert completion_ids[0][: len(first)] == first
    assert completion_ids[0][-len(last) :] == last
    assert tool_mask[0] == [1] * len(first) + [0] * between + [1] * len(last)
    assert logprobs[0] == [-1.0] * len(first) + [0.0] * between + [-1.0] * len(last)
    assert (completion_ids[2], tool_mask[2]) == ([*ids_of("I don't know"), END], [1] * 13)
    assert (extra_fields, images, list(tool_images)) == ({}, None, [])


def test_a_completion_of_a_text_is_text_and_has_no_mask(trained):
    trainer = trained(lambda prompt, index: "Ho", rows=[{"prompt": "Hi"}], reward_funcs=Recorder())
    found = trainer._generate(["Hi"])
    assert (found.completions, found.tool_mask, found.logprobs) == (["Ho"], None, [[-1.0] * 3])


def test_a_rollout_func_is_asked_instead(trained):
    trainer = trained(trls_script, rows=[question()], reward_funcs=Recorder(), rollout_func=turns_of)
    prompts = [question("Hi")["prompt"], question("Ho")["prompt"]]
    found = trainer._generate(prompts)
    assert trainer.asked == prompts
    assert (found.prompt_ids, found.tool_mask) == ([ids_of("Hi")] * 2, [[1, 0, 0, 1, 1]] * 2)
    assert found.completions[0] == [{"role": "assistant", "content": "abcd"}]
    assert found.extra_fields == {"won": [0.0, 1.0], "seed": 7}
    trainer.rollout_func = lambda prompts, trainer: {"prompt_ids": [[1]], "completion_ids": [[2]]}
    with pytest.raises(ConfigError, match=r"rollout_func must return keys \['logprobs'\]"):
        trainer._generate(["Hi"])


def test_vllm_is_given_the_weights_once_a_step(trained):
    given = []
    trainer = trained(lambda prompt, index: "Ho", rows=[{"prompt": "Hi"}], reward_funcs=Recorder())
    trainer.engine.take_weights = given.append
    trainer.use_vllm, trainer.state.global_step = True, 4
    trainer._generate(["Hi"])
    trainer._generate(["Hi"])
    assert given == [0]  # the policy version
    trainer.state.global_step = 5
    trainer._generate(["Hi"])
    assert given == [0, 0]
    with pytest.raises(ConfigError, match=r"^GRPOTrainer\.use_vllm must stay as it was"):
        trainer.train()


def test_an_environment_that_fails_is_no_completion(trained):
    def lost(a: int) -> int:
        """
        Lose the connection.

        Args:
            a: Anything.
        """
        raise ConnectionError("gone")

    trainer = trained(lambda prompt, index: call("lost", a=1), rows=[question()], reward_funcs=Recorder(), tools=[lost])
    with pytest.raises(TrainingError, match="gone"):
        trainer._generate([question()["prompt"]])
