"""The four algorithms and the optimiser, as options."""

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
    kind="mended",
    about="-tmbs -tbs -t",
    text="gradients of micro-batches were added up, so that an update grew with their number and depended on the "
    "layout; here an average is over the whole update",
)
DIRECTION = Note(
    kind="changed",
    about="-kl",
    text="the penalty is the estimator that is differentiated there, with the gradient of KL(reference || policy); "
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
            kind="mended",
            about="-a DAPO",
            text=f"a completion cut at -mnt got 0 and one a token shorter less; here the penalty of the last "
            f"{cache} tokens falls to -1 and stays there, whether the answer is right or wrong",
        ),
        Note(
            kind="mended",
            about="-a DAPO",
            text="skip_threshold was read nowhere; here a completion whose mean ratio is above it is left out",
        ),
        Note(
            kind="changed",
            about="-a DAPO",
            text=f"groups outside the filter are replaced within their step, in {REFILLS} more rounds at most "
            "(--max-refills), where an update waited for groups of later rounds",
        ),
    ]
    if "kl_coeff" in read.given:
        notes.append(Note(kind="idle", about="-kl", text="DAPO has no penalty, there as here; --beta sets one"))
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
        kind="changed",
        about="-a RLOO",
        text=f"a right answer weighs {RIGHT:g} as there: no standard deviation divides it, and -kl is relative to it",
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
            kind="mended",
            about="-a REINFORCE_PPB",
            text="advantages were multiplied by the standard deviation of a micro-batch, and the penalty stood inside "
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
    return Translation(options=options, notes=(Note(kind="mended", about=f"-e {one.num_episodes}", text=text),))
