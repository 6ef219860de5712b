"""Options of the task and of the objective: model, rows, rewards, held-out sets; algorithm, optimiser, sampling."""

import json
import math

from paceline.compat.commands.colossalchat.arguments import ZERO_BUBBLE, ColossalChatArguments
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


RIGHT = 10.0
"""ColossalChat's reward for a right answer."""
LONGEST_CACHE = 1024
"""Most tokens over which its length penalty rises."""
REFILLS = 3
SKIP_THRESHOLD = 20.0
FALLING_EPISODES = 4


def objective(one: ColossalChatArguments, found: Translation) -> None:
    """Add the options of advantage, loss, filter and optimiser."""
    text = (
        "gradients of micro-batches were added up, so that an update grew with their number and depended on the "
        "layout; here an average is over the whole update"
    )
    found.note("mended", "-tmbs -tbs -t", text)
    if one.algo == "GRPO":
        found.decide(preset="grpo")
    elif one.algo == "DAPO":
        _dapo(one, found)
    elif one.algo == "RLOO":
        found.decide(advantage="leave_one_out", reward_weights=(RIGHT,))
        found.decide(clip_eps_low=0.2, clip_eps_high=0.2, average="sequence")
        text = f"a right answer weighs {RIGHT:g} as there: no standard deviation divides it, and -kl is relative to it"
        found.note("changed", "-a RLOO", text)
    else:
        found.decide(preset="reinforce_pp", average="sequence", beta=one.kl_coeff)
        text = (
            "advantages were multiplied by the standard deviation of a micro-batch, and the penalty stood inside them "
            "with a gradient of its own; here they are divided by the step's, and the penalty stands in the loss"
        )
        found.note("mended", "-a REINFORCE_PPB", text)
    if one.algo in ("GRPO", "RLOO"):
        found.decide(beta=one.kl_coeff, kl="k3" if one.kl_coeff > 0 else "reverse")
        if one.kl_coeff > 0:
            text = (
                "the penalty is the estimator that is differentiated there, with the gradient of "
                "KL(reference || policy); leave --kl out for the KL that it is called after"
            )
            found.note("changed", "-kl", text)
    found.decide(learning_rate=one.learning_rate, lr_schedule="cosine", min_lr_ratio=0.1)
    found.decide(weight_decay=0.01, max_grad_norm=1.0)
    if one.num_episodes > FALLING_EPISODES:
        text = (
            f"the learning rate rose again from episode {FALLING_EPISODES + 1} on; here it falls to the end of the run"
        )
        found.note("mended", f"-e {one.num_episodes}", text)


def _dapo(one: ColossalChatArguments, found: Translation) -> None:
    cache = min(LONGEST_CACHE, one.max_new_tokens // 4)
    found.decide(
        preset="dapo",
        # of accuracy, strictly inside: a reward of 1 or 0 has the accuracy for its mean
        filter_range=(0.01, 0.7) if one.script == ZERO_BUBBLE else (0.01, 0.99),
        max_refills=REFILLS,
        overlong_share=cache / one.max_new_tokens,
        mask_truncated=True,
        skip_threshold=SKIP_THRESHOLD,
    )
    text = (
        f"a completion cut at -mnt got 0 and one a token shorter less; here the penalty of the last {cache} tokens "
        "falls to -1 and stays there, whether the answer is right or wrong"
    )
    found.note("mended", "-a DAPO", text)
    text = "skip_threshold was read nowhere; here a completion whose mean ratio is above it is left out"
    found.note("mended", "-a DAPO", text)
    text = (
        f"groups outside the filter are replaced within their step, in {REFILLS} more rounds at most (--max-refills), "
        "where an update waited for groups of later rounds"
    )
    found.note("changed", "-a DAPO", text)
    if "kl_coeff" in one.given:
        found.note("idle", "-kl", "DAPO has no penalty, there as here; --beta sets one")


ANNEALED = 0.9
HF_TOP_K = 50
END = "</answer>"
GPU_SHARE = 0.7
"""Share of a producer's device for vLLM."""


def sampling(one: ColossalChatArguments, found: Translation) -> None:
    """Add the options that shape a completion."""
    if one.temperature != ANNEALED:
        text = (
            f"went on to {ANNEALED:g} over the first episode, while trainers went on dividing by {one.temperature:g}; "
            "here one temperature holds for both"
        )
        found.note("mended", f"-temp {one.temperature:g}", text)
    top_k = one.top_k
    if top_k is None and one.backend == "transformers":
        top_k = HF_TOP_K
        text = f"the transformers backend has {top_k} for its default; --top-k 0 samples what is trained"
        found.note("changed", "-topk", text)
    found.decide(max_completion_length=one.max_new_tokens, temperature=one.temperature)
    found.decide(top_p=one.top_p, top_k=max(0, top_k or 0))
    if one.reward_type == "think_answer_tags":
        found.decide(stop=(END,))
        text = (
            f"the end of the text did not end a completion that had no {END}, which then ran to -mnt; here either ends "
            "it"
        )
        found.note("mended", "-rt think_answer_tags", text)
    if one.backend == "vllm":
        found.decide(engine="vllm", vllm_tensor_parallel=one.producer_tensor_parallel_size, vllm_memory=GPU_SHARE)
        return
    text = "the default backend cannot run; here completions come from the engine in the samplers' own processes"
    found.note("mended", "-b transformers", text)
    if one.producer_tensor_parallel_size > 1:
        text = "without -b vllm a sampler is one process with one device, so that the model has to fit it"
        found.note("missing", f"-ptp {one.producer_tensor_parallel_size}", text)
