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
from paceline.rewards.function import BuiltIn, Grade, RewardContext, parameters_of
from paceline.rewards.judges.client import JudgeClient
from paceline.rewards.judges.own_service import own_service
from paceline.rewards.judges.prompts import JudgeFailure, JudgeVerdict, VerdictRequest, short
from paceline.rewards.judges.settings import JudgeSettings, VerdictCache

RUBRIC_FILES = (".txt", ".md")
SECRETS = ("key", "token", "secret", "password", "authorization")
"""Words in a parameter's name that suggest the service's key."""
ADDRESS_ONLY, SERVED_ONLY = ("model", "key_env"), ("prompt_tokens",)
"""Parameters of a judge at an address only, and of one that the run serves itself only."""

VerdictOrFailure = JudgeVerdict | JudgeFailure


def judge(name: str, context: RewardContext) -> BuiltIn:
    """Make the judge of a name in `--reward-funcs`.

    `judge:http://127.0.0.1:8000/v1(model=qwen)` is a judge at an address, `judge:runs/judge` a model that the run
    serves itself from the first request on.

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
    grader = Judge(client, seed=context.seed, call_seconds=context.call_seconds)
    return BuiltIn(
        name="judge",
        call=grader.grade,
        gold=None,
        describe=grader.describe,
        needs_group=settings.mode != "score",
        calls=grader.calls,
        counts=client.spending.drained,
    )


def judge_settings(name: str) -> JudgeSettings:
    """Return the parameters in a judge's name, with a rubric that may still be a file; raises as `judge` does."""
    parameters, model = _parameters(name), served_model(name)
    for parameter in parameters:
        if model is not None and parameter in ADDRESS_ONLY:
            raise RewardError(
                f"--reward-funcs {JUDGE}{model}: {parameter} is of a judge at an address, and this model is served by "
                "the run itself; leave it out"
            )
        if model is None and parameter in SERVED_ONLY:
            raise RewardError(
                f"--reward-funcs judge: {parameter} is of a model that the run serves itself; leave it out, the "
                "service at the address has a limit of its own"
            )
    return JudgeSettings(**({"model": model} if model is not None else {}), **parameters)  # type: ignore[arg-type]


def _check_address(url: str) -> None:
    """Refuse what is no address, or holds a password or a query, which would be recorded with the run."""
    parts = SplitResult("", "", "", "", "")
    with suppress(ValueError):  # brackets or a port that are none
        address = urlsplit(url)
        parts = parts if address.port == 0 else address
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
    """Return the file of a judge's rubric; None: the rubric is text, or the default."""
    rubric = parameter_texts(name, label="--reward-funcs judge", error=RewardError).get("rubric", "")
    return local_path(rubric) if rubric.endswith(RUBRIC_FILES) else None


def _parameters(name: str) -> Mapping[str, object]:
    known = JudgeSettings.__dataclass_fields__
    for parameter in parameter_texts(name, label="--reward-funcs judge", error=RewardError):
        if parameter not in known and any(word in parameter.lower() for word in SECRETS):
            # the sentence leaves out the whole name, which holds the value
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
    """Text of each completion that the judge reads."""

    @property
    def distinct(self) -> tuple[str, ...]:
        """Texts without duplicates; equal texts get the same number and are not compared."""
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
        """Return a reward for each completion, None without another to compare it with, or the error of a failure."""
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
        # the requests of all groups are sent at once
        by_group = [list(self._requests(group)) for group in groups]
        verdicts = iter(self.client.ask(list(itertools.chain(*by_group)), seconds=self._seconds))
        grades = list[Grade | RewardError | None]()
        for group, requests in zip(groups, by_group, strict=True):
            responses = list(zip(requests, itertools.islice(verdicts, len(requests)), strict=True))
            grade = self._alone if self.settings.mode == "score" else self._compared
            grades += grade(group, responses)
        return grades

    def calls(self, num_generations: int) -> int:
        """Return the calls for a group of so many different completions, without retries."""
        by_mode = {"score": num_generations, "pairwise": num_generations * (num_generations - 1), "rank": 1}
        return by_mode[self.settings.mode] * self.settings.repeats

    def describe(self) -> str:
        """Describe model, mode, budget and cache of verdicts; probes the service at the first call.

        Raises:
            RewardError: the service does not respond.
        """
        settings = self.settings
        if self._remark is None:
            self._remark = self.client.probe()
        limits = [
            f"at most {limit:,} {what}"
            for limit, what in ((settings.call_budget, "calls"), (settings.token_budget, "tokens"))
            if limit is not None
        ]
        open_key = (
            " the key goes over it unencrypted;" if settings.key_env and self.client.url.startswith("http:") else ""
        )
        remark = f" {self._remark};" if self._remark else ""
        return (
            f"judge {settings.model} {self.client.location}, mode {settings.mode}:{remark}{open_key} "
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
        """Return the texts in an order drawn from the run's seed, reversed in every second repetition."""

        def drawn(text: str) -> bytes:
            key = json.dumps([self._seed, repeat // 2, group.question, text])
            return blake2b(key.encode(), digest_size=16).digest()

        return tuple(sorted(group.distinct, key=drawn, reverse=repeat % 2 == 1))

    def _alone(
        self, group: JudgedGroup, responses: Sequence[tuple[VerdictRequest, VerdictOrFailure]]
    ) -> list[Grade | RewardError]:
        """Give each completion the mean of its verdicts."""
        by_text: dict[str, list[VerdictOrFailure]] = {text: [] for text in group.distinct}
        for request, verdict in responses:
            by_text[request.completions[0]].append(verdict)
        graded = dict[str, Grade | RewardError]()
        for text, verdicts in by_text.items():
            scored = [verdict for verdict in verdicts if isinstance(verdict, JudgeVerdict)]
            scores = [verdict.scores[0] for verdict in scored]
            self._count_agreement(scores)
            if scores:
                points = ", ".join(f"{round(score * self.settings.scale)}" for score in scores)
                note = f"{points} of {self.settings.scale}: {short(scored[0].reason)}"
                graded[text] = Grade(value=math.fsum(scores) / len(scores), note=note)
            else:
                graded[text] = self._failure(verdicts)
        return [graded[text] for text in group.texts]

    def _compared(
        self, group: JudgedGroup, responses: Sequence[tuple[VerdictRequest, VerdictOrFailure]]
    ) -> list[Grade | RewardError | None]:
        """Give each completion the mean of its points against the others."""
        texts = group.distinct
        if len(group.texts) == 1:
            return [None]
        points, failures = self._points(texts, responses)
        graded = list[Grade | RewardError | None]()
        for text in group.texts:
            # half a point against completions of the same text, the verdicts' points against others
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
        self, texts: Sequence[str], responses: Sequence[tuple[VerdictRequest, VerdictOrFailure]]
    ) -> tuple[dict[tuple[str, str], float], list[JudgeFailure]]:
        """Return the points of each text against each other one, in [0, 1], without pairs judged in one order only."""
        wins: dict[tuple[str, str], list[float]] = {pair: [] for pair in itertools.combinations(texts, 2)}
        lost, failures = set[tuple[str, str, int]](), list[JudgeFailure]()
        by_repeat = dict[tuple[str, str, int], list[float]]()
        for request, verdict in responses:
            shown = dict(zip(request.completions, itertools.count(), strict=False))
            for first, second in wins:
                if first not in shown or second not in shown:
                    continue
                key = (first, second, request.repeat)
                if isinstance(verdict, JudgeFailure):
                    lost.add(key)
                    continue
                difference = verdict.scores[shown[first]] - verdict.scores[shown[second]]
                by_repeat.setdefault(key, []).append(0.5 if difference == 0 else float(difference > 0))
            failures += [verdict] if isinstance(verdict, JudgeFailure) else []
        for key, values in by_repeat.items():
            if key not in lost:
                wins[key[:2]] += values
        points = dict[tuple[str, str], float]()
        for (first, second), values in wins.items():
            self._count_agreement(values)
            if values:
                mean = math.fsum(values) / len(values)
                points[first, second], points[second, first] = mean, 1 - mean
        return points, failures

    def _count_agreement(self, values: Sequence[float]) -> None:
        """Count the agreement of verdicts on the same texts: 1 minus the difference of each two."""
        agreements = [1 - abs(first - second) for first, second in itertools.combinations(values, 2)]
        if agreements:
            self.client.spending.add(agreement_sum=math.fsum(agreements), agreement_pairs=len(agreements))

    def _failure(self, verdicts: Sequence[VerdictOrFailure]) -> RewardError:
        failure = next(verdict for verdict in verdicts if isinstance(verdict, JudgeFailure))
        return RewardError(f"judge {self.settings.model} {self.client.location}: {failure.kind}: {failure}")


def _question(prompt: str, messages: Sequence[Mapping[str, object]] | None) -> str:
    """Return the messages of a prompt as text, or the text of a plain prompt."""
    if messages is None:
        return prompt
    texts = [(message.get("role"), message.get("content")) for message in messages]
    return "\n\n".join(f"{role}: {text if isinstance(text, str) else json.dumps(text)}" for role, text in texts)
