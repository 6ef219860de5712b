"""Parameters of a judge, its budget, what it has spent, and the cache on disk that spares calls.

Spending counts calls, tokens and failures by kind. The cache holds verdicts, so that a resumed run, or one with the
same completions, repeats no request: a small JSON file per verdict is written under a temporary name and renamed, so
that processes share the cache without a lock, and a kill leaves the whole file or none. It holds the judge's response,
but neither the prompt nor a key.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import RewardError
from paceline.kernels.cache import cache_directory
from paceline.rewards.judges.prompts import RUBRIC, JudgeFailure, JudgeMode


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSettings:
    """Parameters of a judge: `judge:http://HOST:PORT/v1(model=NAME, mode=pairwise)`, `judge:MODEL(mode=pairwise)`."""

    model: str = ""
    """Name of the model at the service; required with an address."""
    rubric: str = RUBRIC
    """Criteria: a file that ends in .txt or .md, or text without commas and brackets."""
    mode: JudgeMode = "score"
    scale: int = 10
    """Best score of the mode `score`; a reward is a share of it."""
    repeats: int = 1
    """Verdicts on the same texts, which are averaged."""
    temperature: float = 0.0
    verdict_tokens: int = 512
    """Most tokens of a response."""
    prompt_tokens: int = 3584
    """Most tokens of a request to a model that the run serves itself."""
    timeout: float = 60.0
    """Timeout of one call, in seconds."""
    retries: int = 3
    """Further tries of a call that failed."""
    concurrency: int = 16
    """Most calls at the same time."""
    call_budget: int | None = None
    """Most calls of this process; None: no limit."""
    token_budget: int | None = None
    """Most tokens, read and written, of this process; None: no limit."""
    key_env: str = ""
    """Name of the environment variable that holds the service's key; empty: none is sent."""

    def __post_init__(self) -> None:
        rules = (
            ("model", self.model, self.model != "", "name the model at the service; add model=NAME"),
            ("scale", self.scale, self.scale >= 1, "be at least 1"),
            ("repeats", self.repeats, self.repeats >= 1, "be at least 1"),
            (
                "repeats",
                self.repeats,
                self.repeats == 1 or self.temperature > 0 or self.mode == "rank",
                "be 1 at temperature 0, where the same texts get the same verdict again; add temperature=1",
            ),
            ("temperature", self.temperature, self.temperature >= 0, "be at least 0"),
            ("verdict_tokens", self.verdict_tokens, self.verdict_tokens >= 1, "be at least 1"),
            ("prompt_tokens", self.prompt_tokens, self.prompt_tokens >= 1, "be at least 1"),
            ("timeout", self.timeout, self.timeout > 0, "be above 0"),
            ("retries", self.retries, self.retries >= 0, "be at least 0"),
            ("concurrency", self.concurrency, 1 <= self.concurrency <= 1024, "lie in [1, 1024]"),
            ("call_budget", self.call_budget, self.call_budget is None or self.call_budget >= 1, "be at least 1"),
            ("token_budget", self.token_budget, self.token_budget is None or self.token_budget >= 1, "be at least 1"),
        )
        for name, value, right, rule in rules:
            if not right:
                raise RewardError(f"--reward-funcs judge: {name} must {rule}, got {value!r}")
        # The value is not quoted: it may be the key itself.
        if self.key_env and not (self.key_env.isidentifier() and self.key_env.isupper()):
            raise RewardError(
                "--reward-funcs judge: key_env must be the name of an environment variable in capitals; put the key "
                "into that variable, never into an option"
            )


class Spending:
    """Budget and spending of a judge, for any number of threads."""

    def __init__(self, *, calls: int | None, tokens: int | None) -> None:
        self.calls, self.tokens = calls, tokens
        self._made, self._spent = 0, 0  # the tokens of calls under way count as the most that they may be
        self._counts, self._lock = Counter[str](), threading.Lock()

    def take(self, tokens: int) -> None:
        """Set aside one call of at most so many tokens.

        Raises:
            JudgeFailure: the budget does not have it.
        """
        with self._lock:
            if self.calls is not None and self._made >= self.calls:
                raise JudgeFailure("budget", f"call_budget {self.calls} is used up")
            if self.tokens is not None and self._spent + tokens > self.tokens:
                raise JudgeFailure(
                    "budget",
                    f"token_budget {self.tokens} has {self.tokens - self._spent} left, a call may take {tokens}",
                )
            self._made, self._spent = self._made + 1, self._spent + tokens
            self._counts["calls"] += 1

    def settle(self, taken: int, spent: int) -> None:
        """Replace the tokens that were set aside for a call by those that it took."""
        with self._lock:
            self._spent += spent - taken

    def add(self, **counts: float) -> None:
        """Add to the numbers for the metrics."""
        with self._lock:
            for name, value in counts.items():
                self._counts[name] += value  # type: ignore[assignment]

    def drained(self) -> dict[str, float]:
        """Return the numbers since the last call, and reset them."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return dict(sorted(counts.items()))


def spending_metrics(counts: Mapping[str, float]) -> dict[str, object]:
    """Convert `drained` numbers to the metrics of a step: verdicts, calls, failures by kind, tokens, means."""
    verdicts, cached, answered = counts.get("verdicts", 0), counts.get("cached", 0), counts.get("answered", 0)
    pairs = counts.get("agreement_pairs", 0)
    failed = {name.removeprefix("failed_"): value for name, value in counts.items() if name.startswith("failed_")}
    return {
        **{name: counts.get(name, 0) for name in ("verdicts", "cached", "calls", "retries", "unsaved")},
        "cache_hit_rate": cached / verdicts if verdicts else None,
        "failed": failed,
        "tokens_read": counts.get("tokens_read", 0),
        "tokens_written": counts.get("tokens_written", 0),
        "latency_mean": counts.get("latency_sum", 0.0) / answered if answered else None,
        "agreement": counts.get("agreement_sum", 0.0) / pairs if pairs else None,
    }


class VerdictCache:
    """Responses of a judge, by the hash of the request."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory` None: `judges` in the user's cache."""
        self.directory = cache_directory() / "judges" if directory is None else directory

    def find(self, key: str) -> str | None:
        """Return the response to the request with this hash; None: there is none, or its file is damaged."""
        try:
            record = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        response = record.get("response") if isinstance(record, dict) else None
        return response if isinstance(response, str) else None

    def keep(self, key: str, response: str) -> None:
        """Write a response; raises OSError where it cannot be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            beside.write_text(json.dumps({"response": response}), encoding="ascii")
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key[2:]}.json"
