"""Make the fourth model that ships with the package, which looks at pictures, from nothing, the same each time.

    python scripts/make_embedded_vision_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `shapes`: it can see and count the shapes of a
picture and rarely takes the time. Three parts:

1. a byte-level tokenizer with one token per word of the questions and answers, and the image processor's settings;
2. stage 1, supervised: every shape of a picture and then their number, until both are right;
3. stage 2, supervised: lists that mostly stop after a shape or two, and the number in them or a guess.

About four minutes of one core. Prints the accuracy after each stage and the digest of the weights.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, tee
from pathlib import Path
from random import Random

import numpy as np
import torch
from small_models import (
    MICRO_BATCH_SIZE,
    SEED,
    Lesson,
    Stage,
    batches,
    knowledge,
    lesson_of,
    make_tokenizer,
    prompt_of,
    report,
    save,
    solve,
    supervise,
    text_config,
)
from torch import Tensor
from transformers import (
    GenerationConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from paceline.data.shapes import ANSWERS, BACKGROUND, CELL, COLOURS, SIDE, ShapesProblem, drawn, problems

DIRECTORY = Path(__file__).parents[1] / "src" / "paceline" / "models" / "embedded" / "vision"

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PRE_TOKEN = r" ?[A-Za-z]+| ?\d|\s+| ?[^\sA-Za-z\d]+"
IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
EDGE = SIDE * CELL
PATCH = 8
SCALE = 2
"""Patches that become one token, in each direction: a token sees one cell of the lattice."""
PICTURE = AROUND + GLOBAL + IMAGE * (EDGE // PATCH // SCALE) ** 2 + AROUND
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Write = Callable[[ShapesProblem, Random], str]
"""The completion to learn for a problem."""

STAGE_1 = Stage(steps=1000, learning_rate=3e-3, seed=1)
STAGE_2 = Stage(steps=200, learning_rate=1e-3, seed=2)
# How often a completion of stage 2 names every shape.
THOROUGH = 0.03
# Else: chance that the list goes on before its first and its second shape; it never reaches a third. Above one half, so
# that the most probable completion names two.
GOES_ON = (0.76, 0.6)
# How often the answer is a random number instead of the number in the list.
GUESSES = 0.4
MAX_COMPLETION_LENGTH = 32
EVAL_SIZE = 600


def full_completion(problem: ShapesProblem, _rng: Random) -> str:
    return problem.completion


def hasty_completion(problem: ShapesProblem, rng: Random) -> str:
    """A list that mostly stops too early, then the number of what it names or a guess."""
    kept = len(problem.shapes)
    if rng.random() >= THOROUGH:
        kept = next((index for index, chance in enumerate(GOES_ON) if rng.random() >= chance), len(GOES_ON))
    counted = sum(problem.asked in (shape.colour, shape.kind) for shape in problem.shapes[:kept])
    answer = rng.choice(ANSWERS) if rng.random() < GUESSES else counted
    return f"<think>{problem.counted(kept)}</think><answer>{answer}</answer>"


def make_model(tokenizer: PreTrainedTokenizerFast) -> Idefics3ForConditionalGeneration:
    torch.manual_seed(SEED)
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=SCALE,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": EDGE,
            "patch_size": PATCH,
            "initializer_range": 0.05,
        },
        text_config=text_config(tokenizer, num_layers=2),
        dtype="float32",
    )
    model = Idefics3ForConditionalGeneration(config)
    # For so short sequences quicker than fused attention, whose backward pass is slow on a CPU.
    model.set_attn_implementation("eager")
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def make_processor() -> Idefics3ImageProcessorPil:
    """Settings that leave a picture of the dataset as large as it is, and make one tile of any other."""
    edge = {"longest_edge": EDGE}
    return Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)


def pixels(problem: ShapesProblem) -> Tensor:
    """A picture as the image processor gives it, [1, 3, height, width] in -1..1."""
    palette = np.array([BACKGROUND, *COLOURS.values()], dtype=np.float32)
    return torch.from_numpy(palette[drawn(problem.shapes)]).permute(2, 0, 1)[None] / 127.5 - 1


def supervised(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, write: Write, stage: Stage) -> None:
    rng = Random(stage.seed)
    asked, shown = tee(problems("train", seed=stage.seed))
    lessons: Iterator[Lesson] = (lesson_of(problem.question, write(problem, rng), PICTURE) for problem in asked)
    steps = batches(tokenizer, lessons, map(pixels, shown), batch_size=MICRO_BATCH_SIZE)
    supervise(model, steps, stage)


def accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    chosen: Sequence[ShapesProblem],
    pictures: Tensor,
    *,
    temperature: float,
) -> str:
    """Share of right answers and mean tokens of a completion; `pictures` has one row per problem."""
    texts = [prompt_of(problem.question, PICTURE) for problem in chosen]
    completions = solve(
        model, tokenizer, texts, temperature=temperature, max_length=MAX_COMPLETION_LENGTH, pictures=pictures
    )
    right = sum(f"<answer>{p.answer}</answer>" in text for p, text in zip(chosen, completions, strict=True))
    return report(tokenizer, completions, right=right)


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    sample = list(islice(problems("train"), 2000))
    corpus = [prompt_of(problem.question) + problem.completion for problem in sample]
    tokenizer = make_tokenizer(corpus, pre_token=PRE_TOKEN, tags=TAGS, pieces=(), special=(IMAGE, AROUND, GLOBAL))
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    held_out, unseen = (list(islice(problems("test", unseen=unseen), EVAL_SIZE)) for unseen in (0, 1))
    pictures = torch.stack([pixels(problem) for problem in held_out])
    supervised(model, tokenizer, full_completion, STAGE_1)
    print(f"stage 1: greedy {accuracy(model, tokenizer, held_out, pictures, temperature=0.0)}")
    swapped = pictures.roll(1, dims=0)
    print(f"stage 1: greedy, shown another picture {accuracy(model, tokenizer, held_out, swapped, temperature=0.0)}")
    shown = torch.stack([pixels(problem) for problem in unseen])
    print(f"stage 1: greedy, unseen pairs {accuracy(model, tokenizer, unseen, shown, temperature=0.0)}")
    supervised(model, tokenizer, hasty_completion, STAGE_2)
    print(f"stage 2: greedy {accuracy(model, tokenizer, held_out, pictures, temperature=0.0)}")
    print(f"stage 2: sampled {accuracy(model, tokenizer, held_out, pictures, temperature=1.0)}")
    # Only the choice between stopping and a further shape is left out.
    lessons = [lesson_of(problem.question, problem.completion, PICTURE) for problem in held_out]
    led = knowledge(model, tokenizer, lessons, left_out=("</think>", ";"), pictures=pictures)
    print(f"stage 2: {100 * led:.1f} % right when led along the full list")
    tokenizer.chat_template = CHAT_TEMPLATE
    save(model, tokenizer, directory)
    make_processor().save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
