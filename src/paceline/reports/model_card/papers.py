"""The paper of a run's objective: of its preset, else of what the options are nearest to."""

import re
from dataclasses import dataclass

from paceline.config.presets import PRESETS
from paceline.config.sections import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """What a citation needs."""

    key: str
    arxiv: str
    title: str
    author: str
    """The first, as BibTeX has names; all papers here have others."""

    @property
    def bibtex(self) -> str:
        """An entry that Hub and LaTeX read."""
        fields = {
            "title": f"{{{self.title}}}",
            "author": f"{self.author} and others",
            "year": f"20{self.arxiv[:2]}",
            "eprint": self.arxiv,
            "archivePrefix": "arXiv",
            "url": f"https://arxiv.org/abs/{self.arxiv}",
        }
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@misc{{{self.key},\n{lines}\n}}"


PAPERS = {
    paper.arxiv: paper
    for paper in (
        Paper(
            key="shao2024deepseekmath",
            arxiv="2402.03300",
            title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
            author="Shao, Zhihong",
        ),
        Paper(
            key="yu2025dapo",
            arxiv="2503.14476",
            title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
            author="Yu, Qiying",
        ),
        Paper(
            key="liu2025understanding",
            arxiv="2503.20783",
            title="Understanding R1-Zero-Like Training: A Critical Perspective",
            author="Liu, Zichen",
        ),
        Paper(
            key="zheng2025group",
            arxiv="2507.18071",
            title="Group Sequence Policy Optimization",
            author="Zheng, Chujie",
        ),
        Paper(
            key="minimax2025m1",
            arxiv="2506.13585",
            title="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
            author="{MiniMax}",
        ),
        Paper(
            key="gao2025soft",
            arxiv="2511.20347",
            title="Soft Adaptive Policy Optimization",
            author="Gao, Chang",
        ),
        Paper(
            key="ahmadian2024back",
            arxiv="2402.14740",
            title="Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
            author="Ahmadian, Arash",
        ),
        Paper(
            key="hu2025reinforce",
            arxiv="2501.03262",
            title="REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models",
            author="Hu, Jian",
        ),
        Paper(
            key="khatri2025art",
            arxiv="2510.13786",
            title="The Art of Scaling Reinforcement Learning Compute for LLMs",
            author="Khatri, Devvrit",
        ),
    )
}
GRPO = PAPERS["2402.03300"]
"""Paper of the comparison within a group, which every run makes."""


def paper_of(config: Config) -> Paper:
    """The paper of the preset; without one, of the most telling option of the objective."""
    if config.advantage.preset is not None:
        found = re.search(r"arXiv:(\d{4}\.\d{5})", PRESETS[config.advantage.preset].source)
        return GRPO if found is None else PAPERS[found[1]]
    loss, kind = config.loss, config.advantage.advantage
    if loss.bound in ("cispo", "sapo"):
        return PAPERS[{"cispo": "2506.13585", "sapo": "2511.20347"}[loss.bound]]
    if loss.ratio_level == "sequence":
        return PAPERS["2507.18071"]
    if kind in ("batch", "group_mean_batch_std"):
        return PAPERS["2501.03262"]
    if kind in ("leave_one_out", "none"):
        return PAPERS[{"leave_one_out": "2402.14740", "none": "2503.20783"}[kind]]
    return PAPERS["2503.14476"] if loss.average == "token" else GRPO
