"""Published sources of options and of their values: paper and equation.

A source and this implementation may differ; `presets` and `docs/objectives.md` say in what.
"""

from collections.abc import Mapping

DAPO = "DAPO, arXiv:2503.14476"
DEEPSEEK = "DeepSeek-V3.2, arXiv:2512.02556"
GRPO = "GRPO, arXiv:2402.03300"
MINIMAX = "MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5"
TR_DPO = "TR-DPO, arXiv:2404.09656"

OPTION_SOURCES: Mapping[str, str] = {
    "overlong_share": f"{DAPO}, Eq. 13",
    "overlong_weight": f"{DAPO}, Eq. 13",
    "mask_truncated": f"{DAPO}, section 3.4",
    "filter_range": f"{DAPO}, Eq. 11",
    "max_refills": f"{DAPO}, Eq. 11",
    "clip_eps_low": f"{DAPO}, Eq. 8",
    "clip_eps_high": f"{DAPO}, Eq. 8",
    "dual_clip": "dual-clip PPO, arXiv:1912.09729",
    "cispo_max_ratio": MINIMAX,
    "beta": f"{GRPO}, Eq. 3",
    "ref_sync_steps": TR_DPO,
    "ref_sync_mix": TR_DPO,
    "off_policy_threshold": f"{DEEPSEEK}, section 3.1",
    "lora_rank": "LoRA, arXiv:2106.09685",
    "zero_stage": "ZeRO, arXiv:1910.02054",
    "num_generations": f"{GRPO}, section 4.1",
}
"""Source of an option, whatever its value."""

VALUE_SOURCES: Mapping[str, Mapping[object, str]] = {
    "advantage": {
        "group": f"{GRPO}, section 4.1.2",
        "batch": "REINFORCE++, arXiv:2501.03262",
        "group_mean_batch_std": "REINFORCE++ with baseline, arXiv:2501.03262",
        "leave_one_out": "RLOO, arXiv:2402.14740",
        "none": "Dr. GRPO, arXiv:2503.20783",
    },
    "reward_aggregation": {"normalize_then_sum": "GDPO, arXiv:2601.05242"},
    "ratio_level": {"token": f"{GRPO}, Eq. 3", "sequence": "GSPO, arXiv:2507.18071, Eq. 7"},
    "bound": {"clip": f"{DAPO}, Eq. 8", "cispo": MINIMAX, "sapo": "SAPO, arXiv:2511.20347"},
    "average": {
        "token": f"{DAPO}, Eq. 8",
        "sequence": f"{GRPO}, Eq. 3",
        "constant": "Dr. GRPO, arXiv:2503.20783, section 3.2",
        "prompt": "ScaleRL, arXiv:2510.13786, section 3.2",
    },
    "kl": {
        "forward": f"{GRPO}, Eq. 4, differentiated",
        "k3": f"{GRPO}, Eq. 4",
        "k3_ratio": f"{DEEPSEEK}, section 3.1",
    },
    "rollout_correction": {
        "truncate": "truncated importance sampling (Yao et al., 2025)",
        "mask": "When speed kills stability (Liu et al., 2025)",
    },
    "optimizer": {
        "adamw": "AdamW, arXiv:1711.05101",
        "adamw_8bit": "8-bit optimizers, arXiv:2110.02861",
    },
    "pipeline_schedule": {"zero_bubble": "Zero bubble, arXiv:2401.10241"},
}
"""Source of a value of an option."""


def source_of(name: str, value: object) -> str | None:
    """Paper and equation of an option with this value; None: it has none.

    >>> source_of("average", "constant")
    'Dr. GRPO, arXiv:2503.20783, section 3.2'
    """
    if name in OPTION_SOURCES:
        return OPTION_SOURCES[name]
    if name not in VALUE_SOURCES or value not in VALUE_SOURCES[name]:
        return None
    return VALUE_SOURCES[name][value]
