"""An agent of the library smolagents, trained as it is: loop, memory, parsing and wording are the library's own.

    paceline train --model runs/real/SmolLM2-135M-Instruct.Q4_1.gguf \
        --environment harness:examples/smolagents_agent.py:play --dataset 'arithmetic(operations=1, largest=10)' \
        --eval-reward-func play --max-turns 4 --max-turn-length 40 --max-prompt-length 1024

It solves word problems with a calculator, and remembers three that it has solved.
"""

import ast
import json
import operator

import openai  # noqa: F401 - smolagents would import it in each episode anew
import smolagents
from smolagents.agents import EMPTY_PROMPT_TEMPLATES
from smolagents.memory import ActionStep, MemoryStep, TaskStep
from smolagents.monitoring import Timing

MOST_STEPS = 3
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SOLVED = (
    ("Anna has 4 apples. Anna buys 3. How many does Anna have?", "4 + 3", "7"),
    ("Paul has 9 pens. Paul loses 2. How many are left?", "9 - 2", "7"),
    ("Lena has 6 books. Half of them get lost. How many are left?", "6 / 2", "3"),
)


class Calculator(smolagents.Tool):
    """The tool: one operation on two numbers."""

    name, description, output_type = "calculate", "Work out an expression such as 4 + 3.", "string"
    inputs = {"expression": {"type": "string", "description": "Two numbers and + - * or / between them."}}  # noqa: RUF012

    def forward(self, expression):
        """Return the result of an expression, as text."""
        match ast.parse(str(expression), mode="eval").body:
            case ast.BinOp(ast.Constant(int(left)), sign, ast.Constant(int(right))) if type(sign) in OPERATIONS:
                return f"{OPERATIONS[type(sign)](left, right):g}"
        raise ValueError("an expression is two numbers and + - * or / between them")


def call(name: str, **arguments: str) -> str:
    """Write a call as the library reads it from what a model says."""
    return json.dumps({"name": name, "arguments": arguments})


def remembered() -> list[MemoryStep]:
    """What the agent remembers of the solved problems: each is a task, a calculation and an answer."""
    steps = list[MemoryStep]()
    for question, expression, answer in SOLVED:
        said = (call("calculate", expression=expression), call("final_answer", answer=answer))
        steps.append(TaskStep(task=question))
        steps += [
            ActionStep(step_number=number, timing=Timing(0.0, 0.0), model_output=text, observations=answer)
            for number, text in enumerate(said, start=1)
        ]
    return steps


def solved(model: smolagents.Model, question: str) -> str:
    """Let the agent solve a problem; returns its answer."""
    agent = smolagents.ToolCallingAgent(
        tools=[Calculator()],
        model=model,
        prompt_templates={**EMPTY_PROMPT_TEMPLATES, "system_prompt": "You call tools."},
        max_steps=MOST_STEPS,
        verbosity_level=0,
    )
    agent.memory.steps += remembered()
    return str(agent.run(question, reset=False))


def play(task: dict, base_url: str, api_key: str) -> float:
    """Play one conversation of a run."""
    model = smolagents.OpenAIServerModel("policy", api_base=base_url, api_key=api_key, tool_choice="auto")
    return float(solved(model, task["question"]) == task["answer"])
