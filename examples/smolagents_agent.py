"""An agent of the library smolagents, trained as it is: loop, memory, parsing and wording are the library's own.

    paceline train --model Qwen/Qwen3-0.6B --environment harness:examples/smolagents_agent.py:play --dataset seeds \
        --eval-reward-func play --max-turns 6 --max-turn-length 128

It is asked what two goods cost together, and has a tool that tells the price of one.
"""

import random

import smolagents
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

GOODS = ("bread", "milk", "oil", "rice", "salt", "soap", "tea", "wine")
DEAREST = 9
MOST_STEPS = 4


class Price(smolagents.Tool):
    """The tool: a price list that the agent does not see."""

    name, description, output_type = "price", "Look up what an item costs.", "string"
    inputs = {"item": {"type": "string", "description": "Name of the item."}}  # noqa: RUF012 - as the library has it

    def __init__(self, prices: dict[str, int]) -> None:
        super().__init__()
        self.prices = prices

    def forward(self, item):
        """Return the price, or that there is none."""
        return str(self.prices.get(item, "unknown"))


def answered(model: smolagents.Model, seed: int) -> float:
    """Let the agent answer the question of a seed; returns 1 if its answer is right."""
    rng = random.Random(seed)
    prices = {item: rng.randint(1, DEAREST) for item in GOODS}
    one, other = rng.sample(GOODS, 2)
    agent = smolagents.ToolCallingAgent(
        tools=[Price(prices)],
        model=model,
        prompt_templates={**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Look the prices up."},
        max_steps=MOST_STEPS,
        verbosity_level=0,
    )
    answer = agent.run(f"What do {one} and {other} cost together?")
    return float(str(answer) == str(prices[one] + prices[other]))


def play(task: dict, base_url: str, api_key: str) -> float:
    """Play one conversation of a run."""
    model = smolagents.OpenAIServerModel("policy", api_base=base_url, api_key=api_key, tool_choice="auto")
    return answered(model, task["seed"])
