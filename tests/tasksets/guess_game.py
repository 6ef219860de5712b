"""A taskset of verifiers: the game of the dataset `guess`, with a program of its own that plays in process."""

import json
import os
import re

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

SEEN = "PACELINE_TEST_SEEN"
"""Variable with a file for the token ids of each answer, one line each."""


class GameData(vf.TaskData):
    low: int
    high: int
    secret: int


class GameTask(vf.Task[GameData]):
    @vf.reward(weight=1.0)
    async def found(self, trace: vf.Trace) -> float:
        numbers = re.findall(r"\d+", trace.last_reply)
        return float(bool(numbers) and int(numbers[-1]) == self.data.secret)


class GameConfig(vf.TasksetConfig):
    games: int = 40


class GameTaskset(vf.Taskset[GameTask, GameConfig]):
    def load(self):
        for low in range(1, self.config.games + 1):
            data = GameData(prompt=f"Guess a number from {low} to {low + 19}.", low=low, high=low + 19, secret=low + 7)
            yield GameTask(data, self.config.task)


class LoopConfig(HarnessConfig):
    dies: bool = False
    """Raise where a turn is refused, in the place of ending."""


class Loop(Harness[LoopConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=60) as client:
            while True:
                asked = {"model": ctx.model, "messages": messages, "return_token_ids": True}
                answer = await client.post("chat/completions", json=asked)
                if answer.status_code != 200:
                    return ProgramResult(int(self.config.dies), "", answer.text)
                body = answer.json()
                if SEEN in os.environ:
                    with open(os.environ[SEEN], "a") as file:
                        file.write(json.dumps([body["prompt_token_ids"], body["choices"][0]["token_ids"]]) + "\n")
                message = body["choices"][0]["message"]
                numbers = re.findall(r"\d+", message["content"])
                guess = int(numbers[-1]) if numbers else None
                if guess == data.secret:
                    return ProgramResult(0, "", "")
                hint = "higher" if guess is not None and guess < data.secret else "lower"
                messages += [message, {"role": "user", "content": hint}]


__all__ = ["GameTaskset", "Loop"]
