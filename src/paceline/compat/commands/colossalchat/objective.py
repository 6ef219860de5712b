"""The four algorithms, the optimiser and sampling, as options."""

from paceline.compat.commands.colossalchat.arguments import ZERO_BUBBLE, ColossalChatArguments, ColossalChatCommand
from paceline.compat.commands.translation import Note, Translation

RIGHT = 10.0
"""ColossalChat's reward for a right answer."""
LONGEST_CACHE = 1024
"""Most tokens over which its length penalty rises."""
REFILLS = 3
SKIP_THRESHOLD = 20.0
FALLING_EPISODES = 4

AVERAGE = Note(
    "mended",
    "-tmbs -tbs -t",
    "gradients of micro-batches were added up, so that an update grew with their number and depended on the "
    "layout; here an average is over the whole update",
)
DIRECTION = Note(
    "changed",
    "-kl",
    "the penalty is the estimator that is differentiated there, with the gradient of KL(reference || policy); "
    "leave --kl out for the KL that it is called after",
)


def objective(read: ColossalChatCommand) -> Translation:
    """Options of advantage, loss, filter and optimiser."""
    one = read.arguments
    made = {"GRPO": _grpo, "DAPO": _dapo, "RLOO": _rloo, "REINFORCE_PPB": _reinforce}[one.algo]
    return made(read) + _optimiser(one)


def _grpo(read: ColossalChatCommand) -> Translation:
    return Translation(options={"preset": "grpo", **_penalty(read.arguments)}, notes=(AVERAGE, *_direction(read)))


def _dapo(read: ColossalChatCommand) -> Translation:
    one = read.arguments
    cache = min(LONGEST_CACHE, one.max_new_tokens // 4)
    notes = [
        AVERAGE,
        Note(
            "mended",
            "-a DAPO",
            f"a completion cut at -mnt got 0 and one a token shorter less; here the penalty of the last "
            f"{cache} tokens falls to -1 and stays there, whether the answer is right or wrong",
        ),
        Note(
            "mended",
            "-a DAPO",
            "skip_threshold was read nowhere; here a completion whose mean ratio is above it is left out",
        ),
        Note(
            "changed",
            "-a DAPO",
            f"groups outside the filter are replaced within their step, in {REFILLS} more rounds at most "
            "(--max-refills), where an update waited for groups of later rounds",
        ),
    ]
    if "kl_coeff" in read.given:
        notes.append(Note("idle", "-kl", "DAPO has no penalty, there as here; --beta sets one"))
    options = {
        "preset": "dapo",
        # of accuracy, strictly inside: a reward of 1 or 0 has the accuracy for its mean
        "filter_range": (0.01, 0.7) if read.script == ZERO_BUBBLE else (0.01, 0.99),
        "max_refills": REFILLS,
        "overlong_share": cache / one.max_new_tokens,
        "mask_truncated": True,
        "skip_threshold": SKIP_THRESHOLD,
    }
    return Translation(options=options, notes=tuple(notes))


def _rloo(read: ColossalChatCommand) -> Translation:
    scale = Note(
        "changed",
        "-a RLOO",
        f"a right answer weighs {RIGHT:g} as there: no standard deviation divides it, and -kl is relative to it",
    )
    options = {
        "advantage": "leave_one_out",
        "reward_weights": (RIGHT,),
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.2,
        "average": "sequence",
        **_penalty(read.arguments),
    }
    return Translation(options=options, notes=(AVERAGE, scale, *_direction(read)))


def _reinforce(read: ColossalChatCommand) -> Translation:
    notes = (
        AVERAGE,
        Note(
            "mended",
            "-a REINFORCE_PPB",
            "advantages were multiplied by the standard deviation of a micro-batch, and the penalty stood inside "
            "them with a gradient of its own; here they are divided by the step's, and the penalty stands in the loss",
        ),
    )
    options = {"preset": "reinforce_pp", "average": "sequence", "beta": read.arguments.kl_coeff}
    return Translation(options=options, notes=notes)


def _penalty(one: ColossalChatArguments) -> dict[str, object]:
    return {"beta": one.kl_coeff, "kl": "k3" if one.kl_coeff > 0 else "reverse"}


def _direction(read: ColossalChatCommand) -> tuple[Note, ...]:
    return (DIRECTION,) if read.arguments.kl_coeff > 0 else ()


def _optimiser(one: ColossalChatArguments) -> Translation:
    options = {
        "learning_rate": one.learning_rate,
        "lr_schedule": "cosine",
        "min_lr_ratio": 0.1,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
    }
    if one.num_episodes <= FALLING_EPISODES:
        return Translation(options=options)
    text = f"the learning rate rose again from episode {FALLING_EPISODES + 1} on; here it falls to the end of the run"
    return Translation(options=options, notes=(Note("mended", f"-e {one.num_episodes}", text),))


ANNEALED = 0.9
HF_TOP_K = 50
END = "</answer>"
GPU_SHARE = 0.7
"""Share of a producer's device for vLLM."""


def sampling(read: ColossalChatCommand) -> Translation:
    """Options that shape a completion."""
    one = read.arguments
    return _distribution(one) + _end(one) + _engine(one)


def _distribution(one: ColossalChatArguments) -> Translation:
    notes = []
    if one.temperature != ANNEALED:
        text = (
            f"went on to {ANNEALED:g} over the first episode, while trainers went on dividing by {one.temperature:g}; "
            "here one temperature holds for both"
        )
        notes.append(Note("mended", f"-temp {one.temperature:g}", text))
    top_k = one.top_k
    if top_k is None:
        top_k = HF_TOP_K if one.backend == "transformers" else 0
        if top_k:
            text = f"the transformers backend has {top_k} for its default; --top-k 0 samples what is trained"
            notes.append(Note("changed", "-topk", text))
    options = {
        "max_completion_length": one.max_new_tokens,
        "temperature": one.temperature,
        "top_p": one.top_p,
        "top_k": max(0, top_k),
    }
    return Translation(options=options, notes=tuple(notes))


def _end(one: ColossalChatArguments) -> Translation:
    if one.reward_type != "think_answer_tags":
        return Translation()
    text = (
        f"the end of the text did not end a completion that had no {END}, which then ran to -mnt; here either ends it"
    )
    note = Note("mended", "-rt think_answer_tags", text)
    return Translation(options={"stop": (END,)}, notes=(note,))


def _engine(one: ColossalChatArguments) -> Translation:
    if one.backend == "vllm":
        layers = one.producer_tensor_parallel_size
        options = {"engine": "vllm", "vllm_tensor_parallel": layers, "vllm_memory": GPU_SHARE}
        return Translation(options=options)
    text = "the default backend cannot run; here completions come from the engine in the producers' own processes"
    notes = [Note("mended", "-b transformers", text)]
    if one.producer_tensor_parallel_size > 1:
        text = "without -b vllm a producer is one process with one device, so that the model has to fit it"
        notes.append(Note("missing", f"-ptp {one.producer_tensor_parallel_size}", text))
    return Translation(notes=tuple(notes))
