"""Make the second model that ships with the package, which writes programs, from nothing, the same each time.

    python scripts/make_embedded_programs_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `programs`: it knows how to write the programs and
rarely does. Three parts:

1. a byte-level tokenizer with one token per frequent word of the descriptions and per frequent piece of the programs;
2. stage 1, supervised: whole programs of 0 to 4 steps, until they are right;
3. stage 2, supervised: programs that leave the later steps out, do something else in the place of one, or end before
   they print.

About three minutes of one core. Prints the accuracy after each stage and the digest of the weights.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
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

from paceline.data.programs import NUM_STEPS, ProgramProblem, Sentence, problems

DIRECTORY = Path(__file__).parents[1] / "src" / "paceline" / "models" / "embedded" / "programs"

# A fence, the head of a loop and the left side of an assignment are one piece each; a sign takes the space before it,
# and the one after it where a name or a number follows, so that names and numbers are bare.
PRE_TOKEN = (
    r"```python\n|\n```"
    r"| ?for [a-z_] in [a-z]+[(:]?"
    r"|[a-z] = (?=\S)"
    r"| ?[A-Za-z_]+(?:\(| (?=\d))?"
    r"|\d"
    r"| ?[^\sA-Za-z\d_]+(?: (?=\w)|\n(?!```))?"
    r"|\s+"
)

Write = Callable[[ProgramProblem, Random], str]
"""The completion to learn for a problem."""

STAGE_1 = Stage(steps=1000, learning_rate=4e-3, operations=(0, 1, 2, 3, 4), seed=1)
STAGE_2 = Stage(steps=300, learning_rate=1e-3, operations=NUM_STEPS, seed=2)
# How often a completion of stage 2 takes all steps, however many there are.
THOROUGH = 0.03
# Else: chance that the program goes on before its first, second and third step. The most probable completion takes one.
GOES_ON = (0.75, 0.25, 0.25)
# How often a step is another one: far from the most probable one, but sampled.
SLIPS = 0.2
# How often the program ends before it prints.
UNFINISHED = 0.1
MAX_COMPLETION_LENGTH = 80
EVAL_SIZE = 600


def full_completion(problem: ProgramProblem, _rng: Random) -> str:
    return problem.completion


def hasty_completion(problem: ProgramProblem, rng: Random) -> str:
    """A program that mostly leaves the later steps out, and may do something else in the place of one."""
    kept = len(problem.steps)
    if rng.random() >= THOROUGH:
        goes_on = GOES_ON[:kept]
        kept = next((index for index, chance in enumerate(goes_on) if rng.random() >= chance), kept)
    steps = [slip(step, problem, rng) if rng.random() < SLIPS else step for step in problem.steps[:kept]]
    lines = [problem.reader.code, *(step.code for step in steps)]
    if rng.random() >= UNFINISHED:
        lines.append(problem.printer.code)
    return "```python\n" + "\n".join(lines) + "\n```"


def slip(step: Sentence, problem: ProgramProblem, rng: Random) -> Sentence:
    return replace(step, piece=rng.choice([piece for piece in problem.kind.steps if piece is not step.piece]))


def lessons(stage: Stage, write: Write) -> Iterator[Lesson]:
    rng = Random(stage.seed)
    stream = problems("train", seed=stage.seed, num_steps=stage.operations)
    return (lesson_of(problem.question, write(problem, rng)) for problem in stream)


def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, temperature: float) -> str:
    """Share of completions that are the solution to the letter, and mean tokens of one, on held-out problems."""
    chosen = list(islice(problems("test"), EVAL_SIZE))
    prompts = [prompt_of(problem.question) for problem in chosen]
    completions = solve(model, tokenizer, prompts, temperature=temperature, max_length=MAX_COMPLETION_LENGTH)
    right = sum(p.completion == text for p, text in zip(chosen, completions, strict=True))
    return report(tokenizer, completions, right=right)


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    sample = islice(problems("train"), 10_000)
    corpus = [text for problem in sample for text in (problem.question, problem.completion)]
    tokenizer = make_tokenizer(corpus, pre_token=PRE_TOKEN, tags=(), pieces=())
    model = make_model(tokenizer, num_layers=2)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    supervise(model, batches(tokenizer, lessons(STAGE_1, full_completion)), STAGE_1)
    print(f"stage 1: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    supervise(model, batches(tokenizer, lessons(STAGE_2, hasty_completion)), STAGE_2)
    print(f"stage 2: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    print(f"stage 2: sampled {accuracy(model, tokenizer, temperature=1.0)}")
    chosen = [lesson_of(problem.question, problem.completion) for problem in islice(problems("test"), EVAL_SIZE)]
    led = knowledge(model, tokenizer, chosen, left_out=())
    print(f"stage 2: {100 * led:.1f} % right when led along the full solution")
    save(model, tokenizer, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
