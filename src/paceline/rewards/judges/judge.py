"""A judge as a reward function: completions to requests, and verdicts to rewards in [0, 1].

`score` asks about each completion alone. `pairwise` asks about each two completions of a prompt, once in each order.
`rank` asks for an order of all of them. The last two give a completion the same number: the mean over the other
completions of its prompt of 1 where it is better, 0.5 where they are equal or the same text, and 0 where it is worse.
What one gains the other loses, so a group's numbers add up to half of its size, and a judge that prefers whatever it
reads first gives every completion 0.5.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from paceline.base_directory import local_path
from paceline.chat.thinking import prefills_think, visible_text
from paceline.config.reading import base_name, parameter_texts, served_model
from paceline.config.sections import JUDGE
from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, Grade, RewardContext
from paceline.rewards.judges.cache import VerdictCache
from paceline.rewards.judges.client import JudgeClient
from paceline.rewards.judges.own_service import own_service
from paceline.rewards.judges.prompts import JudgeFailure, JudgeVerdict, VerdictRequest, short
from paceline.rewards.judges.settings import JudgeSettings
from paceline.rewards.parameters import parameters_of

RUBRIC_FILES = (".txt", ".md")
SECRETS = ("key", "token", "secret", "password", "authorization")
"""Words in a parameter's name by which somebody may mean the service's key."""
OF_ADDRESSES, OF_SERVED = ("model", "key_env"), ("prompt_tokens",)
"""Parameters of a judge at an address alone, and of one that the run serves itself."""

Answered = JudgeVerdict | JudgeFailure


def judge(name: str, context: RewardContext) -> BuiltIn:
    """The judge that `--reward-funcs` calls `name`, such as `judge:http://127.0.0.1:8000/v1(model=qwen)` at an address,
    or `judge:runs/judge` of a model that the run serves itself once it is asked.

    Raises:
        RewardError: no address, a parameter that is none or has a wrong value, a rubric that cannot be read.
    """
    settings = judge_settings(name)
    file = rubric_file(name)
    if file is not None:
        settings = replace(settings, rubric=_rubric(file))
    url, service = base_name(name).removeprefix(JUDGE), None
    if served_model(name) is None:
        _check_address(url)
    else:
        service = own_service(settings)
    client = JudgeClient(url, settings, VerdictCache(), service)
    one = Judge(client, seed=context.seed, call_seconds=context.call_seconds)
    return BuiltIn(
        name="judge",
        call=one.grade,
        gold=None,
        describe=one.describe,
        needs_group=settings.mode != "score",
        calls=one.calls,
        counts=client.spending.drained,
    )


def judge_settings(name: str) -> JudgeSettings:
    """The parameters in a judge's name, of which a rubric may still be a file; raises as `judge` does."""
    given, model = _parameters(name), served_model(name)
    for parameter in given:
        if model is not None and parameter in OF_ADDRESSES:
            raise RewardError(
                f"--reward-funcs {JUDGE}{model}: {parameter} is of a judge at an address, and this model is served by "
                "the run itself; leave it out"
            )
        if model is None and parameter in OF_SERVED:
            raise RewardError(
                f"--reward-funcs judge: {parameter} is of a model that the run serves itself; leave it out, the "
                "service at the address has a limit of its own"
            )
    return JudgeSettings(**({"model": model} if model is not None else {}), **given)  # type: ignore[arg-type]


def _check_address(url: str) -> None:
    """Refuse what is no address, or holds a password or a query, which would be recorded with the run."""
    parts = SplitResult("", "", "", "", "")
    with suppress(ValueError):  # brackets or a port that are none
        given = urlsplit(url)
        parts = parts if given.port == 0 else given
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise RewardError(
            "--reward-funcs judge: must be followed by the address of a service, such as "
            "judge:http://127.0.0.1:8000/v1(model=NAME), or by a directory or Hub name of a model that the run serves "
            "itself"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RewardError(
            f"--reward-funcs judge:{parts.scheme}://{parts.hostname}: the address must have no password and no "
            "query, which would be recorded with the run; name an environment variable with the key as key_env=NAME"
        )


def rubric_file(name: str) -> Path | None:
    """The file of a judge's rubric; None: its rubric is text, or the default."""
    rubric = parameter_texts(name, label="--reward-funcs judge", error=RewardError).get("rubric", "")
    return local_path(rubric) if rubric.endswith(RUBRIC_FILES) else None


def _parameters(name: str) -> Mapping[str, object]:
    known = JudgeSettings.__dataclass_fields__
    for parameter in parameter_texts(name, label="--reward-funcs judge", error=RewardError):
        if parameter not in known and any(word in parameter.lower() for word in SECRETS):
            # Said without the name, which holds the value.
            raise RewardError(
                f"--reward-funcs judge has no parameter {parameter}, as options are recorded with the run; put the key "
                "into an environment variable and name that as key_env=NAME"
            )
    return parameters_of(name, JudgeSettings)


def _rubric(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise RewardError(f"--reward-funcs judge: rubric {file} cannot be read ({error}); check the path") from None
    if not text:
        raise RewardError(f"--reward-funcs judge: rubric {file} is empty; write down what is good")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedGroup:
    """Completions of one prompt, next to each other in the batch."""

    question: str
    reference: str | None
    texts: tuple[str, ...]
    """What the judge is to read of each completion."""

    @property
    def distinct(self) -> tuple[str, ...]:
        """Each text once; the same text gets the same number without being compared with itself."""
        return tuple(dict.fromkeys(self.texts))


class Judge:
    """Grades batches of completions by the verdicts of one service."""

    def __init__(self, client: JudgeClient, *, seed: int, call_seconds: float) -> None:
        """`seed` draws the orders in which `rank` shows completions; `call_seconds` bounds a batch."""
        self.client, self.settings, self._seed, self._seconds = client, client.settings, seed, call_seconds
        self._remark: str | None = None

    def grade(
        self,
        *,
        prompts: Sequence[str],
        completions: Sequence[str],
        answer: Sequence[Any],
        prompt_messages: Sequence[Sequence[Mapping[str, object]] | None],
        **columns: object,
    ) -> list[Grade | RewardError | None]:
        """A reward for each completion, None for one that has nothing to be compared with, or why there is none."""
        rows = [
            (
                _question(prompt, messages),
                None if gold is None or not str(gold).strip() else str(gold),
                visible_text(text, prefilled=prefills_think(prompt)).strip(),
            )
            for prompt, text, gold, messages in zip(prompts, completions, answer, prompt_messages, strict=True)
        ]
        groups = [
            JudgedGroup(question=question, reference=reference, texts=tuple(text for _, _, text in members))
            for (question, reference), members in itertools.groupby(rows, key=lambda row: row[:2])
        ]
        # All groups are asked about at once, and the verdicts go back to theirs.
        asked = [list(self._requests(group)) for group in groups]
        verdicts = iter(self.client.ask([one for requests in asked for one in requests], seconds=self._seconds))
        grades = list[Grade | RewardError | None]()
        for group, requests in zip(groups, asked, strict=True):
            answers = list(zip(requests, itertools.islice(verdicts, len(requests)), strict=True))
            grades += self._alone(group, answers) if self.settings.mode == "score" else self._compared(group, answers)
        return grades

    def calls(self, num_generations: int) -> int:
        """Calls that a group of so many different completions takes, without retries."""
        of_mode = {"score": num_generations, "pairwise": num_generations * (num_generations - 1), "rank": 1}
        return of_mode[self.settings.mode] * self.settings.repeats

    def describe(self) -> str:
        """What is asked, what may be spent, and where verdicts are kept; the service is looked at once.

        Raises:
            RewardError: it does not answer.
        """
        one = self.settings
        if self._remark is None:
            self._remark = self.client.probe()
        limits = [
            f"at most {limit:,} {what}"
            for limit, what in ((one.call_budget, "calls"), (one.token_budget, "tokens"))
            if limit is not None
        ]
        open_key = " the key goes over it unencrypted;" if one.key_env and self.client.url.startswith("http:") else ""
        remark = f" {self._remark};" if self._remark else ""
        return (
            f"judge {one.model} {self.client.place}, mode {one.mode}:{remark}{open_key} "
            f"{' and '.join(limits) or 'no limit to its calls and tokens'} in each process that grades; "
            f"verdicts are kept in {self.client.cache.directory}"
        )

    def _requests(self, group: JudgedGroup) -> Iterator[VerdictRequest]:
        texts, mode = group.distinct, self.settings.mode
        for repeat in range(self.settings.repeats):
            shown: Iterator[tuple[str, ...]]
            if mode == "score":
                shown = ((text,) for text in texts)
            elif mode == "pairwise":
                shown = itertools.permutations(texts, 2)
            else:
                shown = iter([self._order(group, repeat)] if len(texts) > 1 else [])
            for completions in shown:
                yield VerdictRequest(
                    mode=mode,
                    rubric=self.settings.rubric,
                    question=group.question,
                    reference=group.reference,
                    completions=completions,
                    scale=self.settings.scale,
                    repeat=repeat,
                )

    def _order(self, group: JudgedGroup, repeat: int) -> tuple[str, ...]:
        """The texts in an order drawn from the run's seed; every second repetition has the one before it backwards."""

        def drawn(text: str) -> bytes:
            key = json.dumps([self._seed, repeat // 2, group.question, text])
            return blake2b(key.encode(), digest_size=16).digest()

        return tuple(sorted(group.distinct, key=drawn, reverse=repeat % 2 == 1))

    def _alone(
        self, group: JudgedGroup, answers: Sequence[tuple[VerdictRequest, Answered]]
    ) -> list[Grade | RewardError]:
        """Give each completion the mean of its verdicts."""
        by_text: dict[str, list[Answered]] = {text: [] for text in group.distinct}
        for request, verdict in answers:
            by_text[request.completions[0]].append(verdict)
        graded = dict[str, Grade | RewardError]()
        for text, verdicts in by_text.items():
            given = [one for one in verdicts if isinstance(one, JudgeVerdict)]
            scores = [one.scores[0] for one in given]
            self._count_agreement(scores)
            if scores:
                said = ", ".join(f"{round(score * self.settings.scale)}" for score in scores)
                note = f"{said} of {self.settings.scale}: {short(given[0].reason)}"
                graded[text] = Grade(value=math.fsum(scores) / len(scores), note=note)
            else:
                graded[text] = self._failure(verdicts)
        return [graded[text] for text in group.texts]

    def _compared(
        self, group: JudgedGroup, answers: Sequence[tuple[VerdictRequest, Answered]]
    ) -> list[Grade | RewardError | None]:
        """Give each completion the mean of what it got against the others."""
        texts = group.distinct
        if len(group.texts) == 1:
            return [None]
        points, failures = self._points(texts, answers)
        graded = list[Grade | RewardError | None]()
        for text in group.texts:
            # Against completions of the same text half a point, against others what verdicts say, where there are any.
            same = group.texts.count(text) - 1
            others = [points[text, other] for other in group.texts if (text, other) in points]
            if not others and len(texts) > 1:
                graded.append(self._failure(failures))
                continue
            value = (math.fsum(others) + 0.5 * same) / (len(others) + same)
            note = f"better than {math.fsum(others) + 0.5 * same:g} of {len(others) + same} others"
            graded.append(Grade(value=value, note=note))
        return graded

    def _points(
        self, texts: Sequence[str], answers: Sequence[tuple[VerdictRequest, Answered]]
    ) -> tuple[dict[tuple[str, str], float], list[JudgeFailure]]:
        """What each text got against each other, in [0, 1]; a pair asked about in one order only is left out."""
        said: dict[tuple[str, str], list[float]] = {pair: [] for pair in itertools.combinations(texts, 2)}
        lost, failures = set[tuple[str, str, int]](), list[JudgeFailure]()
        by_repeat = dict[tuple[str, str, int], list[float]]()
        for request, verdict in answers:
            shown = dict(zip(request.completions, itertools.count(), strict=False))
            for one, other in said:
                if one not in shown or other not in shown:
                    continue
                key = (one, other, request.repeat)
                if isinstance(verdict, JudgeFailure):
                    lost.add(key)
                    continue
                difference = verdict.scores[shown[one]] - verdict.scores[shown[other]]
                by_repeat.setdefault(key, []).append(0.5 if difference == 0 else float(difference > 0))
            failures += [verdict] if isinstance(verdict, JudgeFailure) else []
        for key, values in by_repeat.items():
            if key not in lost:
                said[key[:2]] += values
        points = dict[tuple[str, str], float]()
        for (one, other), values in said.items():
            self._count_agreement(values)
            if values:
                mean = math.fsum(values) / len(values)
                points[one, other], points[other, one] = mean, 1 - mean
        return points, failures

    def _count_agreement(self, values: Sequence[float]) -> None:
        """Count how near to each other the verdicts on the same thing are: 1 less the difference of each two."""
        near = [1 - abs(one - other) for one, other in itertools.combinations(values, 2)]
        if near:
            self.client.spending.add(agreement_sum=math.fsum(near), agreement_pairs=len(near))

    def _failure(self, verdicts: Sequence[Answered]) -> RewardError:
        failure = next(one for one in verdicts if isinstance(one, JudgeFailure))
        return RewardError(f"judge {self.settings.model} {self.client.place}: {failure.kind}: {failure}")


def _question(prompt: str, messages: Sequence[Mapping[str, object]] | None) -> str:
    """The messages of a prompt as text, or the text of a plain prompt."""
    if messages is None:
        return prompt
    texts = [(one.get("role"), one.get("content")) for one in messages]
    return "\n\n".join(f"{role}: {text if isinstance(text, str) else json.dumps(text)}" for role, text in texts)
