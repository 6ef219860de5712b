"""The paper that a model card cites, by the options of the run; papers.bib holds them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from paceline.config.algorithms import ADVANTAGES, BOUNDS
from paceline.config.presets import PRESETS
from paceline.config.sections import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """An entry of `papers.bib`."""

    arxiv: str
    title: str
    bibtex: str
    """Whole entry of BibTeX."""


@cache
def _papers() -> Mapping[str, Paper]:
    """Read the papers of objectives, by their numbers on arXiv."""
    entries = files("paceline.reports").joinpath("papers.bib").read_text(encoding="utf-8").strip().split("\n\n")
    fields = [dict(re.findall(r"^  (\w+) = \{(.*)\}", entry, re.MULTILINE)) for entry in entries]
    return {
        paper["eprint"]: Paper(arxiv=paper["eprint"], title=paper["title"].strip("{}"), bibtex=entry)
        for paper, entry in zip(fields, entries, strict=True)
    }


def _cited(source: str | None) -> Paper | None:
    """Return the paper that a source names by its number on arXiv, where there is an entry of it."""
    number = re.search(r"arXiv:(\d{4}\.\d{5})", source or "")
    return None if number is None else _papers().get(number[1])


def paper_of(config: Config) -> Paper:
    """Return the paper of the preset; without one, that of the most characteristic option, else GRPO's."""
    papers, grpo = _papers(), "2402.03300"
    if config.advantage.preset is not None:
        return _cited(PRESETS[config.advantage.preset].source) or papers[grpo]
    loss, kind = config.loss, config.advantage.advantage
    bound, advantage = BOUNDS.get(loss.bound), ADVANTAGES.get(kind)
    if loss.bound != "clip" and bound is not None and (paper := _cited(bound.source)) is not None:
        return paper
    if loss.ratio_level == "sequence":
        return papers["2507.18071"]
    if kind != "group" and advantage is not None and (paper := _cited(advantage.source)) is not None:
        return paper
    return papers["2503.14476" if loss.average == "token" else grpo]
