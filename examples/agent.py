"""An agent that is trained as it is: it knows OpenAI's interface, and nothing of Paceline.

    paceline train --model embedded-agent --environment harness:examples/agent.py:play --eval-reward-func play

The agent plays the game of the dataset `guess`. What it returns is the reward.
"""

import re

from openai import BadRequestError, OpenAI

MOST_GUESSES = 8


def play(task: dict, base_url: str, api_key: str) -> float:
    """Play one game; returns 1 if the number was found."""
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages = list(task["messages"])
    for _ in range(MOST_GUESSES):
        try:
            response = client.chat.completions.create(model="policy", messages=messages)
        except BadRequestError as error:
            if error.code == "episode_over":  # the run's limits on turns or tokens are reached
                return 0.0
            raise
        said = response.choices[0].message.content
        numbers = re.findall(r"\d+", said)
        guess, secret = int(numbers[-1]) if numbers else None, int(task["answer"])
        if guess == secret:
            return 1.0
        if guess is None:
            reply = f"Say a number from {task['low']} to {task['high']}."
        else:
            reply = "higher" if guess < secret else "lower"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return 0.0
