"""An interpreter that runs nothing: what each piece of code comes to is written by the test."""

from paceline.errors import SandboxError
from paceline.sandbox.programs import CodeResult


class ScriptedInterpreter:
    """Answers code as the table says: by a result, an output, or a failure of the sandbox."""

    def __init__(self, seed: int, outcomes: dict[str, CodeResult | str | SandboxError]) -> None:
        self.seed, self.outcomes, self.is_closed = seed, outcomes, False

    def run(self, source: str) -> CodeResult:
        outcome = self.outcomes[source]
        if isinstance(outcome, SandboxError):
            raise outcome
        return CodeResult(output=outcome, seconds=0.0) if isinstance(outcome, str) else outcome

    def close(self) -> None:
        self.is_closed = True
