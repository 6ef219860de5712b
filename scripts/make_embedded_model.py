"""Make the small model that ships with the package, from nothing, the same each time.

    python scripts/make_embedded_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `arithmetic`: it knows how to solve the problems
and rarely does. Three parts:

1. a byte-level tokenizer with one token per number and per frequent word of the problems;
2. stage 1, supervised: full solutions of 1 to 5 operations, until the arithmetic is right;
3. stage 2, supervised: reasoning that mostly stops after a step or two and answers with the value reached so far
   or a guess.

About four minutes of one core. Prints the accuracy after each stage and the digest of the weights.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from small_models import (
    Lesson,
    Stage,
    batches,
    knowledge,
    lesson_of,
    make_model,
    make_tokenizer,
    prompt_of,
    report,
    save,
    solve,
    supervise,
)
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.data.generated import OPERATIONS, ArithmeticProblem, problems

DIRECTORY = Path(__file__).parents[1] / "src" / "paceline" / "models" / "embedded"

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# A word takes the space before it, and the one after it when a number follows: numbers are then bare digits everywhere,
# so that the 12 of a question and the 12 of a solution are the same token.
PRE_TOKEN = r" ?[A-Za-z]+(?: (?=\d))?|\d{1,2}|\s+| ?[^\sA-Za-z\d]+"

Write = Callable[[ArithmeticProblem, Random], str]
"""The completion to learn for a problem."""

STAGE_1 = Stage(steps=2200, learning_rate=4e-3, operations=(1, 2, 3, 4, 5), seed=1)
STAGE_2 = Stage(steps=300, learning_rate=1e-3, operations=OPERATIONS, seed=2)
# How often a completion of stage 2 is reasoned to the end, however many steps that takes.
THOROUGH = 0.03
# Else: chance that the reasoning goes on before its first and its second step; it never reaches a third. Above one
# half, so that the most probable completion solves what two steps solve.
GOES_ON = (0.76, 0.72)
# How often the answer is a random number instead of the value reached: far from the most probable one, but sampled.
GUESSES = 0.4
MAX_COMPLETION_LENGTH = 64
EVAL_SIZE = 600


def full_completion(problem: ArithmeticProblem, _rng: Random) -> str:
    return problem.completion


def hasty_completion(problem: ArithmeticProblem, rng: Random) -> str:
    """Reasoning that mostly stops too early, then the value reached so far or a guess."""
    steps = problem.solution.split(";")
    kept = len(steps)
    if rng.random() >= THOROUGH:
        kept = next((index for index, chance in enumerate(GOES_ON) if rng.random() >= chance), len(GOES_ON))
    guessed = kept == 0 or rng.random() < GUESSES
    answer = str(rng.randint(0, 99)) if guessed else steps[kept - 1].partition("=")[2]
    return f"<think>{';'.join(steps[:kept])}</think><answer>{answer}</answer>"


def lessons(stage: Stage, write: Write) -> Iterator[Lesson]:
    rng = Random(stage.seed)
    stream = problems("train", seed=stage.seed, operations=stage.operations)
    return (lesson_of(problem.question, write(problem, rng)) for problem in stream)


def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, temperature: float) -> str:
    """Share of right answers and mean tokens of a completion, on held-out problems."""
    chosen = list(islice(problems("test"), EVAL_SIZE))
    prompts = [prompt_of(problem.question) for problem in chosen]
    completions = solve(model, tokenizer, prompts, temperature=temperature, max_length=MAX_COMPLETION_LENGTH)
    right = sum(f"<answer>{p.answer}</answer>" in text for p, text in zip(chosen, completions, strict=True))
    return report(tokenizer, completions, right=right)


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    corpus = [prompt_of(problem.question) + problem.completion for problem in islice(problems("train"), 10_000)]
    numbers = [str(number) for number in range(10, 100)]
    tokenizer = make_tokenizer(corpus, pre_token=PRE_TOKEN, tags=TAGS, pieces=numbers)
    model = make_model(tokenizer, num_layers=2)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    supervise(model, batches(tokenizer, lessons(STAGE_1, full_completion)), STAGE_1)
    print(f"stage 1: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    supervise(model, batches(tokenizer, lessons(STAGE_2, hasty_completion)), STAGE_2)
    print(f"stage 2: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    print(f"stage 2: sampled {accuracy(model, tokenizer, temperature=1.0)}")
    # Only the choice between stopping and a further step is left out.
    chosen = [lesson_of(problem.question, problem.completion) for problem in islice(problems("test"), EVAL_SIZE)]
    led = knowledge(model, tokenizer, chosen, left_out=("</think>", ";"))
    print(f"stage 2: {100 * led:.1f} % right when led along the full solution")
    save(model, tokenizer, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
