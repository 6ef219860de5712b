"""Shell scripts as people keep their commands in: read, never run.

Understood are comments, continued lines, quotes, assignments, `export`, arrays, `$X`, `${X}`, `${X:-y}`, positional
parameters, sums of whole numbers, and redirections. Branches of an `if`, and what follows `&&` and `||`, are read one
after the other, without those that a test of known values keeps from running. What only a shell can know, such as
`$(nproc)`, is refused where the training command needs it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from paceline.compat.commands.evaluating import ASSIGNMENT, UNKNOWN, sum_of, truth
from paceline.compat.commands.launching import LAUNCHERS, PYTHON, unwrapped
from paceline.errors import ConfigError

SHELLS = ("bash", "sh", "zsh", "dash")
NAME = re.compile(r"[A-Za-z_]\w*")
PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
OPENING = ("do", "while", "until", "{", "!")
"""Keywords of the shell in front of a command."""
DECLARING = ("export", "declare", "local", "readonly", "typeset")
SILENT = (
    *("fi", "done", "esac", "}", "set", "echo", "printf", "mkdir", "source", ".", "[", "[[", "test", "unset", "exit"),
    *("ulimit", "module", "conda", "for", "case", "trap", "sleep", "wait", "date", "true", "tee", "shopt", "alias"),
)
"""Commands on which no option of a training depends."""


@dataclass(kw_only=True, slots=True)
class _Branching:
    """An `if` that is being read."""

    runs: bool | None = None
    """True if the present branch runs, as far as a reader knows."""
    had: bool | None = False
    """True if an earlier branch runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShellCommand:
    """One command of a script."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Exported variables, and assignments in front of it."""
    line: int
    runs: bool = True
    """False if a test of known values keeps it from running."""

    @property
    def start(self) -> str:
        """First two words, for messages."""
        return " ".join(self.words[:2]).replace(UNKNOWN, "")


def script_of(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Path and arguments of the script that a command runs; None for another command.

    >>> script_of(["bash", "-x", "grpo.sh", "8"])
    ('grpo.sh', ('8',))
    """
    if words and PurePosixPath(words[0]).name in SHELLS:
        words = [word for at, word in enumerate(words) if at and not (word.startswith("-") and word != "-c")]
    if words and words[0].endswith((".sh", ".bash", ".zsh", ".sbatch", ".slurm")):
        return words[0], tuple(words[1:])
    return None


def inline_script(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Text and arguments of the script that stands in a command; None for another command.

    >>> inline_script(["bash", "-lc", "trl grpo"])
    ('trl grpo', ())
    """
    if not words or PurePosixPath(words[0]).name not in SHELLS:
        return None
    at = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    return (words[at + 1], tuple(words[at + 3 :])) if at + 1 < len(words) else None


def training_command(commands: Sequence[ShellCommand], path: str) -> tuple[ShellCommand, list[ShellCommand]]:
    """Return the single command that trains, and the others that may matter; ConfigError for none or several."""
    running = [command for command in commands if command.runs]
    launched = [command for command in running if _is_training(command.words)]
    training = launched or [command for command in running if _is_program(command.words)]
    if len(training) != 1:
        lines = ", ".join(f"line {command.line} {command.start}" for command in training) or "none"
        raise ConfigError(f"{path} must have one command that trains, got {lines}; write that command behind --")
    (chosen,) = training
    silent = [(word,) for word in SILENT]
    for word in (*chosen.words, *chosen.environment.values()):
        if UNKNOWN in word:
            raise ConfigError(
                f"{path}, line {chosen.line}: the value of {word.split(UNKNOWN)[1]} is not in the script; write it in "
                "its place, or export the variable first"
            )
    others = [
        command for command in commands if command is not chosen and unwrapped(command.words)[0][:1] not in silent
    ]
    return chosen, others


def _is_training(words: Sequence[str]) -> bool:
    words = [word for word in unwrapped(words)[0] if not ASSIGNMENT.match(word)]
    if tuple(words[:2]) in (("swift", "rlhf"), ("megatron", "rlhf"), ("trl", "grpo")):
        return True
    names = [PurePosixPath(word).name for word in words[:3]]
    if names and PYTHON.fullmatch(names[0]):
        names[0] = "python"
    if words[1:4] == ["-m", "trl", "grpo"]:
        return True
    is_launched = any(tuple(names[: len(start)]) == start for start in LAUNCHERS)
    modules = ("swift.cli.rlhf", "trl.scripts.grpo")
    programs = ("rl_example.py", "rl_example_zero_bubble.py", "rlhf.py")
    return any(word in modules or PurePosixPath(word).name in programs for word in words) or (
        is_launched and any(word.endswith(".py") for word in words)
    )


def _is_program(words: Sequence[str]) -> bool:
    return any(word.endswith(".py") for word in unwrapped(words)[0][:2])


def read_shell(text: str, *, arguments: Sequence[str], environment: Mapping[str, str]) -> list[ShellCommand]:
    """Commands of a script in their order. `environment`: variables that are set before it starts.

    >>> text = 'export N=2\\nfor x in 1 2; do\\nA=(--model "my model")\\nswift rlhf "${A[@]}" --seed ${S:-$N} # seed'
    >>> [(c.words, c.environment) for c in read_shell(text, arguments=(), environment={}) if "rlhf" in c.words]
    [(('swift', 'rlhf', '--model', 'my model', '--seed', '2'), {'N': '2'})]
    """
    reader = _Reader(text.replace("\r\n", "\n"), environment, arguments)
    reader.read()
    return reader.commands


class _Reader:
    """One pass over a script: words are expanded with the variables that are set where they stand."""

    def __init__(self, text: str, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.commands: list[ShellCommand] = []
        self._text, self._at = text, 0
        self._variables: dict[str, tuple[str, ...]] = {name: (value,) for name, value in environment.items()}
        self._variables |= {str(number): (word,) for number, word in enumerate(arguments, start=1)}
        self._variables["@"] = self._variables["*"] = tuple(arguments)
        self._exported = set[str]()
        self._words: list[str] = []
        self._word: str | None = None
        self._is_empty_list = False
        self._line = 1
        self._branches: list[_Branching] = []
        self._status: bool | None = None
        """True if the last command succeeded, None where only a shell knows."""
        self._link = ""
        """`&&` or `||` in front of the present command."""

    def read(self) -> None:
        """Read to the end."""
        while self._at < len(self._text):
            self._read_one()
        self._end_command()

    def _read_one(self) -> None:
        """Read the next character, or the construct that begins with it."""
        character, self._at = self._text[self._at], self._at + 1
        if character == "\\":
            if self._text[self._at : self._at + 1] != "\n":
                self._append(self._text[self._at : self._at + 1])
            self._at += 1
        elif character in " \t":
            self._end_word()
        elif character == "#" and self._word is None:
            self._at = self._find("\n")
        elif character in "\n;&|)":
            is_link = character in "&|" and self._text[self._at : self._at + 1] == character
            self._at += is_link
            self._end_command(character * 2 if is_link else "")
        elif character in "<>":
            self._skip_redirection(character)
        elif character in "\"'":
            self._read_quoted(character)
        elif character in "$`":
            self._expand(character, is_quoted=False)
        elif character == "(":
            self._read_array()
        else:
            self._append(character)

    def _find(self, what: str) -> int:
        end = self._text.find(what, self._at)
        return len(self._text) if end < 0 else end

    def _append(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None and (self._words or not self._branch(self._word)):
            self._words.append(self._word)
        self._word = None

    def _branch(self, word: str) -> bool:
        """Follow a word of an `if`; False for any other word."""
        if word == "if":
            self._branches.append(_Branching())
            self._status = None
        elif not self._branches or word not in ("then", "elif", "else", "fi"):
            return False
        elif word == "fi":
            self._branches.pop()
        else:
            present = self._branches[-1]
            if word == "then":
                present.runs = False if present.had else self._status if present.had is False else None
                if self._status is False:
                    present.runs = False
            else:
                present.had = True if present.had or present.runs else None if present.runs is None else present.had
                present.runs = None if present.had is None else not present.had
            self._status = None
        return True

    def _is_skipped(self) -> bool:
        """True where a test of known values keeps the present command from running."""
        is_left_out = any(branch.runs is False for branch in self._branches)
        return is_left_out or (self._link, self._status) in (("&&", False), ("||", True))

    def _is_assigning(self) -> bool:
        """True within the value of an assignment, which is not split into words."""
        before = all(ASSIGNMENT.match(word) or word in DECLARING for word in self._words)
        return before and self._word is not None and ASSIGNMENT.match(self._word) is not None

    def _read_quoted(self, quote: str) -> None:
        before, self._is_empty_list = self._word, False
        self._append("")
        if quote == "'":
            end = self._find("'")
            self._append(self._text[self._at : end])
            self._at = end + 1
            return
        while self._at < len(self._text) and self._text[self._at] != '"':
            character, self._at = self._text[self._at], self._at + 1
            if character in "$`":
                self._expand(character, is_quoted=True)
            elif character == "\\" and self._text[self._at : self._at + 1] in ('"', "\\", "$", "`", "\n"):
                self._append(self._text[self._at].strip("\n"))
                self._at += 1
            else:
                self._append(character)
        self._at += 1
        if self._is_empty_list and self._word == "":  # "${A[@]}" of an empty array is no word
            self._word = before

    def _expand(self, character: str, *, is_quoted: bool) -> None:
        start = self._at
        following = self._text[self._at : self._at + 1]
        if character == "`":
            self._at = self._find("`") + 1
            self._append(f"{UNKNOWN}`{self._text[start : self._at]}{UNKNOWN}")
        elif following == "(":
            inside = self._inside("(", ")")
            is_sum = inside.startswith("(") and inside.endswith(")")
            total = sum_of(self._replaced(inside[1:-1], bare=True)) if is_sum else None
            self._append(f"{UNKNOWN}$({inside}){UNKNOWN}" if total is None else str(total))
        elif following == "{":
            self._add(self._value(self._inside("{", "}")), is_quoted=is_quoted)
        elif name := (NAME.match(self._text, self._at) or re.compile(r"[\d@*#?$!]").match(self._text, self._at)):
            self._at = name.end()
            self._add(self._value(name[0]), is_quoted=is_quoted)
        else:
            self._append("$")

    def _add(self, values: tuple[str, ...], *, is_quoted: bool) -> None:
        """Append the value of a variable to the word, or several words."""
        if not is_quoted and not self._is_assigning():
            values = tuple(word for value in values for word in ([value] if UNKNOWN in value else value.split()))
        self._is_empty_list = not values
        for number, value in enumerate(values):
            if number:
                self._end_word()
            self._append(value)

    def _value(self, parameter: str) -> tuple[str, ...]:
        match = PARAMETER.fullmatch(parameter)
        if match is None:
            return (f"{UNKNOWN}${{{parameter}}}{UNKNOWN}",)
        name, index, default, otherwise = match.groups()
        value = self._variables.get(name)
        if default and (value is None or (default.startswith(":") and not "".join(value))):
            return (self._replaced(otherwise),)
        if value is None:
            return (f"{UNKNOWN}${name}{UNKNOWN}",)
        return value if index or name in "@*" else value[:1] or ("",)

    def _replaced(self, text: str, *, bare: bool = False) -> str:
        """Text with its variables replaced; `bare`: names stand without a dollar too, as within a sum."""
        pattern = r"\$?\{?([A-Za-z_]\w*)\}?" if bare else r"\$\{?([A-Za-z_]\w*)\}?"
        plain = text.strip("\"'") if not bare else text
        return re.sub(pattern, lambda match: "".join(self._value(match[1])[:1]), plain)

    def _inside(self, opening: str, closing: str) -> str:
        """Text within brackets that nest; the position goes behind them."""
        depth, start = 0, self._at + 1
        for at in range(self._at, len(self._text)):
            depth += (self._text[at] == opening) - (self._text[at] == closing)
            if depth == 0:
                self._at = at + 1
                return self._text[start:at]
        self._at = len(self._text)
        return self._text[start:]

    def _read_array(self) -> None:
        """Read the elements behind `NAME=(`; another bracket begins a command."""
        assigned = ASSIGNMENT.fullmatch(self._word or "")
        if assigned is None:
            self._end_command()
            return
        self._at -= 1
        inner = _Reader(self._inside("(", ")").replace("\n", " "), {}, ())
        inner._variables = self._variables
        while inner._at < len(inner._text):
            inner._read_one()
        inner._end_word()
        before = self._variables.get(assigned[1], ()) if assigned[2] else ()
        if not self._is_skipped():
            self._variables[assigned[1]] = (*before, *inner._words)
            self._status = True
        self._link = ""
        self._word = None

    def _skip_redirection(self, character: str) -> None:
        if self._word is not None and not self._word.isdecimal():
            self._end_word()
        self._word = None
        sign = re.compile(r"[<>&|-]*\s*").match(self._text, self._at)
        is_document = character == "<" and self._text[self._at : self._at + 1] == "<"
        self._at = sign.end() if sign else self._at
        target = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s;|&)]*").match(self._text, self._at)
        self._at = target.end() if target else self._at
        if is_document and target:
            word = re.escape(re.sub(r"[\"']", "", target[0]))
            end = re.compile(rf"^\s*{word}\s*$", re.MULTILINE)
            closing = end.search(self._text, self._at)
            self._at = closing.end() if closing else len(self._text)

    def _end_command(self, link: str = "") -> None:
        self._end_word()
        words, self._words = self._words, []
        line, self._line = self._line, self._text.count("\n", 0, self._at) + 1
        is_skipped = self._is_skipped()
        if words or link:
            self._link = link
        if is_skipped:
            if words and not ASSIGNMENT.match(words[0]) and words[0] not in DECLARING:
                self.commands.append(ShellCommand(words=tuple(words), environment={}, line=line, runs=False))
            return
        if words:
            self._run(words, line)

    def _run(self, words: list[str], line: int) -> None:
        """Assign what a command assigns, or add it to the commands."""
        self._status = truth(words)
        while words and words[0] in OPENING:
            words = words[1:]
        if words[:1] == ["for"] and len(words) > 1:
            self._variables[words[1]] = (f"{UNKNOWN}${words[1]}{UNKNOWN}",)
        count = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if words[count : count + 1] and words[count] in DECLARING:
            names = [word for word in words[count + 1 :] if not word.startswith("-")]
            self._assign([word for word in names if ASSIGNMENT.match(word)])
            if words[count] == "export":
                self._exported |= {word.partition("=")[0] for word in names}
        elif count == len(words):
            self._assign(words)
        else:
            before = self._variables
            self._variables = dict(before)
            self._assign(words[:count])
            shown = self._exported | {word.partition("=")[0] for word in words[:count]}
            environment = {name: self._variables[name][0] for name in sorted(shown) if self._variables.get(name)}
            self._variables = before
            self.commands.append(ShellCommand(words=tuple(words[count:]), environment=environment, line=line))

    def _assign(self, words: Sequence[str]) -> None:
        for word in words:
            match = ASSIGNMENT.match(word)
            assert match is not None
            before = "".join(self._variables.get(match[1], ("",))[:1]) if match[2] else ""
            self._variables[match[1]] = (before + word[match.end() :],)
