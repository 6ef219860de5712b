"""Data options: model, rows, prompts, rewards, held-out sets."""

import json
import math

from paceline.compat.commands.colossalchat.arguments import ColossalChatArguments
from paceline.compat.commands.translation import Translation
from paceline.errors import ConfigError

EVAL_TEMPERATURE = 0.6
EVAL_REWARD = {"think_answer_tags": "accuracy", "boxed": "boxed", "code": "code"}
"""Reward of their evaluation, which checks the answer and not the format."""
JUDGED = {
    "think_answer_tags": "space after the last tag, or a template that opens <think> itself, cost the whole reward, "
    "and 1,2 was 12; here neither, and a valid format has no text before <think>",
    "boxed": "a box that was never closed hid the one before it, and 1,2 was 12; here the last closed box counts",
    "code": "a fault of the service gave every program 0, a program could read the expected outputs, and an empty list "
    "of tests was passed; here a failed sandbox is no wrong answer, a program sees inputs alone, and a row without "
    "tests is refused (--on-bad-row skip leaves it out)",
}


def tasks(one: ColossalChatArguments, found: Translation) -> None:
    """Add the options of rows and their grading."""
    if one.checkpoint_path is not None:
        raise ConfigError(
            f"-cp {one.checkpoint_path} is a checkpoint of ColossalChat's, and no run can go on with it here; save its "
            "weights as a directory that transformers loads, give that as -m and leave -cp out"
        )
    found.decide(model=one.model, dataset=one.dataset)
    if one.tokenizer_path is not None:
        found.note("idle", "--tokenizer-path", "the tokenizer is read from the model's directory")
    # prompts
    found.decide(max_prompt_length=one.max_prompt_tokens, long_prompts="drop")
    text = (
        f"prompts above {one.max_prompt_tokens} tokens lost the end of their question without a word; here they are "
        "left out and counted, or the run stops with --long-prompts error"
    )
    found.note("mended", "-mpt", text)
    if one.system_prompt is not None:
        found.decide(system_prompt=one.system_prompt)
    else:
        by_code = one.reward_type == "code"
        said = "there is none without -s" if by_code else "the reward function's own asks for its format"
        found.note("changed", "-s", f"the default system message has other words: {said}")
    # rewards
    found.decide(reward_funcs=(one.reward_type,))
    found.note("mended", f"-rt {one.reward_type}", JUDGED[one.reward_type])
    if one.algo != "RLOO":
        text = "what is right is worth 1 instead of 10; advantages are divided by the std, so that they are the same"
        found.note("changed", f"-rt {one.reward_type}", text)
    if one.code_verifier_api_url is not None:
        text = (
            "their own client asked at another address; programs run in this machine's sandbox, or with --sandbox "
            "by a service that speaks SandboxFusion's interface, which theirs does not"
        )
        found.note("idle", "-cv", text)
    if one.eval_dataset is not None:
        _evaluation(one.eval_dataset, one, found)
    elif "eval_interval" in one.given:
        found.note("idle", "-ei", "nothing is measured without held-out rows, which -ed names")


def _evaluation(given: str, one: ColossalChatArguments, found: Translation) -> None:
    example = """write -ed '{"math": "math.jsonl", "code": "code.jsonl"}'"""
    try:
        sets = json.loads(given)
    except ValueError:
        hint = "JSON has double quotes, so the shell's are single ones: " if "'" in given else ""
        raise ConfigError(f"-ed must be a JSON object from names to paths, got {given!r}; {hint}{example}") from None
    if not isinstance(sets, dict) or not sets or not all(isinstance(path, str) and path for path in sets.values()):
        raise ConfigError(f"-ed must be a JSON object from names to paths, got {given!r}; {example}")
    for name in sets:
        if not all(letter.isalnum() or letter in "_.-" for letter in name) or not name:
            raise ConfigError(f"-ed must name its sets with letters, digits, _, . and -, got {name!r}; rename it")
    updates = one.updates_per_round
    every = math.ceil(one.eval_interval / updates) if one.eval_interval > 0 else 0
    found.decide(
        eval_dataset=tuple(f"{name}={path}" for name, path in sets.items()),
        eval_steps=every,
        eval_size=None,
        eval_temperature=EVAL_TEMPERATURE,
        eval_reward_func=EVAL_REWARD[one.reward_type],
    )
    often = "after every step, " if every == 1 else f"every {every} steps, " * (every > 0)
    when = f"{often}before the first and after the last"
    found.note("changed", "-ei", f"counted in steps, {updates} update{'s' * (updates > 1)} each: {when}")
    text = (
        "nothing was measured after the last update, and rows that did not share out evenly counted twice; here every "
        "row counts once, and each set has its interval"
    )
    found.note("mended", "-ed", text)
