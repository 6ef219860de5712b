"""ColossalChat's distributed reinforcement learning: the flags of `rl_example.py` and its zero-bubble variant.

arguments.py  every flag with its default, and argv parsed as the scripts parse it
batches.py    divisibility rules of batch sizes, the nearest valid sizes, and the options: sizes, processes, staleness

The other options are here: model, rows, rewards, evaluation, the four algorithms, the optimiser, sampling, files.
"""

import json
import math
from pathlib import PurePosixPath

from paceline.compat.commands.colossalchat.arguments import SCRIPTS, ZERO_BUBBLE, ColossalChatArguments, read, script_of
from paceline.compat.commands.colossalchat.batches import rounds, settle
from paceline.compat.commands.translation import ForeignCommand, Translation
from paceline.errors import ConfigError


def from_colossalchat(command: ForeignCommand, repair: bool) -> Translation | None:
    """Translate a command that runs one of the scripts."""
    if script_of(command.words) not in SCRIPTS:
        return None
    translation = Translation(environment=dict(command.environment))
    args = settle(read(command.words, translation), translation, repair=repair)
    for part in (tasks, sampling, objective, rounds, keeping):
        part(args, translation)
    return translation


def keeping(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options of checkpoints, rollouts, trackers and profiles."""
    directory = str(PurePosixPath(args.save_dir) / args.project.replace(" ", "_"))
    translation.decide(output_dir=directory, save_steps=args.save_interval, project=args.project)
    text = (
        f"one run directory, {directory}, holds checkpoints/, evals/ and rollouts/, every completion of every step "
        "instead of a few of every twentieth; a directory that holds a run is refused"
    )
    translation.note("changed", "-sd -esd -rsd", text)
    text = (
        "a checkpoint holds all that makes the next step, and `paceline train --resume` goes on from it, where theirs "
        "waited for ever; the newest two are kept (--save-total-limit)"
    )
    translation.note("mended", "-si", text)
    translation.note(
        "changed", "-p", "no account is needed; --report-to wandb sends the numbers to one, under this project"
    )
    if args.enable_profiling:
        translation.decide(profile=True)
        text = "writes timeline.json, which Perfetto opens; completions end where they end, where there all ran to -mnt"
        translation.note("changed", "--enable-profiling", text)


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


def tasks(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options of rows and their grading."""
    if args.checkpoint_path is not None:
        raise ConfigError(
            f"-cp {args.checkpoint_path} is a checkpoint of ColossalChat's, and no run can go on with it here; save "
            "its weights as a directory that transformers loads, give that as -m and leave -cp out"
        )
    translation.decide(model=args.model, dataset=args.dataset)
    if args.tokenizer_path is not None:
        translation.note("idle", "--tokenizer-path", "the tokenizer is read from the model's directory")
    # prompts
    translation.decide(max_prompt_length=args.max_prompt_tokens, long_prompts="drop")
    text = (
        f"prompts above {args.max_prompt_tokens} tokens lost the end of their question without a word; here they are "
        "left out and counted, or the run stops with --long-prompts error"
    )
    translation.note("mended", "-mpt", text)
    if args.system_prompt is not None:
        translation.decide(system_prompt=args.system_prompt)
    else:
        by_code = args.reward_type == "code"
        reason = "there is none without -s" if by_code else "the reward function's own asks for its format"
        translation.note("changed", "-s", f"the default system message has other words: {reason}")
    # rewards
    translation.decide(reward_funcs=(args.reward_type,))
    translation.note("mended", f"-rt {args.reward_type}", JUDGED[args.reward_type])
    if args.algo != "RLOO":
        text = "what is right is worth 1 instead of 10; advantages are divided by the std, so that they are the same"
        translation.note("changed", f"-rt {args.reward_type}", text)
    if args.code_verifier_api_url is not None:
        text = (
            "their own client asked at another address; programs run in this machine's sandbox, or with --sandbox "
            "by a service that speaks SandboxFusion's interface, which theirs does not"
        )
        translation.note("idle", "-cv", text)
    if args.eval_dataset is not None:
        _evaluation(args.eval_dataset, args, translation)
    elif "eval_interval" in args.explicit:
        translation.note("idle", "-ei", "nothing is measured without held-out rows, which -ed names")


def _evaluation(json_text: str, args: ColossalChatArguments, translation: Translation) -> None:
    example = """write -ed '{"math": "math.jsonl", "code": "code.jsonl"}'"""
    try:
        sets = json.loads(json_text)
    except ValueError:
        hint = "JSON has double quotes, so the shell's are single ones: " if "'" in json_text else ""
        raise ConfigError(
            f"-ed must be a JSON object from names to paths, got {json_text!r}; {hint}{example}"
        ) from None
    if not isinstance(sets, dict) or not sets or not all(isinstance(path, str) and path for path in sets.values()):
        raise ConfigError(f"-ed must be a JSON object from names to paths, got {json_text!r}; {example}")
    for name in sets:
        if not all(letter.isalnum() or letter in "_.-" for letter in name) or not name:
            raise ConfigError(f"-ed must name its sets with letters, digits, _, . and -, got {name!r}; rename it")
    updates = args.updates_per_round
    every = math.ceil(args.eval_interval / updates) if args.eval_interval > 0 else 0
    translation.decide(
        eval_dataset=tuple(f"{name}={path}" for name, path in sets.items()),
        eval_steps=every,
        eval_size=None,
        eval_temperature=EVAL_TEMPERATURE,
        eval_reward_func=EVAL_REWARD[args.reward_type],
    )
    often = "after every step, " if every == 1 else f"every {every} steps, " * (every > 0)
    when = f"{often}before the first and after the last"
    translation.note("changed", "-ei", f"counted in steps, {updates} update{'s' * (updates > 1)} each: {when}")
    text = (
        "nothing was measured after the last update, and rows that did not share out evenly counted twice; here every "
        "row counts once, and each set has its interval"
    )
    translation.note("mended", "-ed", text)


RIGHT = 10.0
"""ColossalChat's reward for a right answer."""
LONGEST_CACHE = 1024
"""Most tokens over which its length penalty rises."""
REFILLS = 3
SKIP_THRESHOLD = 20.0
FALLING_EPISODES = 4


def objective(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options of advantage, loss, filter and optimiser."""
    text = (
        "gradients of micro-batches were added up, so that an update grew with their number and depended on the "
        "layout; here an average is over the whole update"
    )
    translation.note("mended", "-tmbs -tbs -t", text)
    if args.algo == "GRPO":
        translation.decide(preset="grpo")
    elif args.algo == "DAPO":
        _dapo(args, translation)
    elif args.algo == "RLOO":
        translation.decide(advantage="leave_one_out", reward_weights=(RIGHT,))
        translation.decide(clip_eps_low=0.2, clip_eps_high=0.2, average="sequence")
        text = f"a right answer weighs {RIGHT:g} as there: no standard deviation divides it, and -kl is relative to it"
        translation.note("changed", "-a RLOO", text)
    else:
        translation.decide(preset="reinforce_pp", average="sequence", beta=args.kl_coeff)
        text = (
            "advantages were multiplied by the standard deviation of a micro-batch, and the penalty stood inside them "
            "with a gradient of its own; here they are divided by the step's, and the penalty stands in the loss"
        )
        translation.note("mended", "-a REINFORCE_PPB", text)
    if args.algo in ("GRPO", "RLOO"):
        translation.decide(beta=args.kl_coeff, kl="k3" if args.kl_coeff > 0 else "reverse")
        if args.kl_coeff > 0:
            text = (
                "the penalty is the estimator that is differentiated there, with the gradient of "
                "KL(reference || policy); leave --kl out for the KL that it is called after"
            )
            translation.note("changed", "-kl", text)
    translation.decide(learning_rate=args.learning_rate, lr_schedule="cosine", min_lr_ratio=0.1)
    translation.decide(weight_decay=0.01, max_grad_norm=1.0)
    if args.num_episodes > FALLING_EPISODES:
        text = (
            f"the learning rate rose again from episode {FALLING_EPISODES + 1} on; here it falls to the end of the run"
        )
        translation.note("mended", f"-e {args.num_episodes}", text)


def _dapo(args: ColossalChatArguments, translation: Translation) -> None:
    cache = min(LONGEST_CACHE, args.max_new_tokens // 4)
    translation.decide(
        preset="dapo",
        # of accuracy, strictly inside: a reward of 1 or 0 has the accuracy for its mean
        filter_range=(0.01, 0.7) if args.script == ZERO_BUBBLE else (0.01, 0.99),
        max_refills=REFILLS,
        overlong_share=cache / args.max_new_tokens,
        mask_truncated=True,
        skip_threshold=SKIP_THRESHOLD,
    )
    text = (
        f"a completion cut at -mnt got 0 and one a token shorter less; here the penalty of the last {cache} tokens "
        "falls to -1 and stays there, whether the answer is right or wrong"
    )
    translation.note("mended", "-a DAPO", text)
    text = "skip_threshold was read nowhere; here a completion whose mean ratio is above it is left out"
    translation.note("mended", "-a DAPO", text)
    text = (
        f"groups outside the filter are replaced within their step, in {REFILLS} more rounds at most (--max-refills), "
        "where an update waited for groups of later rounds"
    )
    translation.note("changed", "-a DAPO", text)
    if "kl_coeff" in args.explicit:
        translation.note("idle", "-kl", "DAPO has no penalty, there as here; --beta sets one")


ANNEALED = 0.9
HF_TOP_K = 50
END = "</answer>"
GPU_SHARE = 0.7
"""Share of a producer's device for vLLM."""


def sampling(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options that shape a completion."""
    if args.temperature != ANNEALED:
        text = (
            f"went on to {ANNEALED:g} over the first episode, while trainers went on dividing by {args.temperature:g}; "
            "here one temperature holds for both"
        )
        translation.note("mended", f"-temp {args.temperature:g}", text)
    top_k = args.top_k
    if top_k is None and args.backend == "transformers":
        top_k = HF_TOP_K
        text = f"the transformers backend has {top_k} for its default; --top-k 0 samples what is trained"
        translation.note("changed", "-topk", text)
    translation.decide(max_completion_length=args.max_new_tokens, temperature=args.temperature)
    translation.decide(top_p=args.top_p, top_k=max(0, top_k or 0))
    if args.reward_type == "think_answer_tags":
        translation.decide(stop=(END,))
        text = (
            f"the end of the text did not end a completion that had no {END}, which then ran to -mnt; here either ends "
            "it"
        )
        translation.note("mended", "-rt think_answer_tags", text)
    if args.backend == "vllm":
        translation.decide(
            engine="vllm", vllm_tensor_parallel=args.producer_tensor_parallel_size, vllm_memory=GPU_SHARE
        )
        return
    text = "the default backend cannot run; here completions come from the engine in the samplers' own processes"
    translation.note("mended", "-b transformers", text)
    if args.producer_tensor_parallel_size > 1:
        text = "without -b vllm a sampler is one process with one device, so that the model has to fit it"
        translation.note("missing", f"-ptp {args.producer_tensor_parallel_size}", text)
