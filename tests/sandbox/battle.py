"""Every hostile program in turn, each followed by a plain one that looks at the world it finds.

    python -m tests.sandbox.battle LEVEL [FAMILY or NAME ...]

does the same without pytest, and runs the right programs too, also as a user without rights: for example, as root and
from the repository's root,
`setpriv --reuid 1000 --regid 1000 --clear-groups env PYTHONPATH=src python3 -m tests.sandbox.battle landlock`, with an
interpreter that this user can reach. It prints one line per finding and ends with status 1 if there is any.
"""

import json
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from paceline.errors import SandboxError
from paceline.sandbox.levels import open_sandbox
from paceline.sandbox.programs import Execution, Job, Limits, Sandbox
from tests.sandbox import right
from tests.sandbox.corpus import Hostile
from tests.sandbox.host import Host, descendants
from tests.sandbox.hostile import FAMILIES
from tests.sandbox.verdicts import complaint

WORKERS = 4
"""Sandboxes of one slot each, so that the program that follows meets what the hostile one left. Many only sleep."""

PATIENCE = 20.0
"""Seconds beyond its limit after which a job has taken too long: generous, for a loaded machine."""

WORLD = r"""
import atexit, builtins, gc, json, math, os, resource, signal, sys, tempfile, threading
def names(place):
    try:
        return sorted(set(os.listdir(place)) - {os.path.basename(os.getcwd())})
    except OSError as error:
        return error.errno
def is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False
def room():
    with open("room", "wb") as file:
        file.write(bytes(200_000))
    os.remove("room")
    return True
print(json.dumps({
    "parent": os.getppid(),
    "process": os.getpid(),
    "answer": sum(map(int, sys.stdin.read().split())),
    "files": {place: names(place) for place in (".", "..", tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")},
    "mode of scratch": oct(os.stat(".").st_mode),
    "room": room(),
    "arithmetic": [3 + 4, 2 * 4, len("abc"), math.sqrt(4), str(7), "paceline"],
    "planted": hasattr(builtins, "planted"),
    "types": [type(f).__name__ for f in (print, open, input, json.loads, os.listdir, sys.excepthook)],
    "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "timers": [signal.getitimer(n) for n in range(3)],
    # that on processes may depend on how many others the same user has
    "limits": [resource.getrlimit(n) for n in range(16) if n != resource.RLIMIT_NPROC],
    "umask": os.umask(0),
    "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), len(os.sched_getaffinity(0))],
    "environment": dict(os.environ),
    "descriptors": [fd for fd in range(1024) if is_open(fd)],
    "threads": threading.active_count(),
    "handlers": [atexit._ncallbacks(), str(sys.gettrace()), str(sys.getprofile()), gc.isenabled(), gc.get_debug()],
    "imports": [sys.path, len(sys.meta_path), len(sys.path_hooks)],
    "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval()],
}))
"""
_WORLD_JOB = Job(source=WORLD, stdin="1 2 3 4\n" * 1000, limits=Limits(seconds=2.0, memory_mb=128))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fight:
    """One hostile program's run, and what the next program met."""

    program: Hostile
    token: str
    execution: Execution | None
    failure: str
    """Why there is no execution: the sandbox itself failed."""
    seconds: float
    """On the clock."""
    difference: str
    """How the next program's world differs from that of a first program."""


@dataclass(kw_only=True, slots=True)
class Battle:
    """All that came of one level."""

    fights: dict[str, Fight] = field(default_factory=dict)
    host: list[str] = field(default_factory=list)
    """What changed on the host, in sentences."""
    key: str = ""
    secret: str = ""


def fight_all(level: str, programs: Sequence[Hostile]) -> Battle:
    """Run `programs` at `level` and look at everything afterwards."""
    host = Host()
    battle = Battle(key=host.key, secret=host.secret)
    others = descendants()
    try:
        sandboxes = [open_sandbox(level, slots=1) for _ in range(min(WORKERS, len(programs)))]
        try:
            _fight_side_by_side(host, sandboxes, programs, battle)
        finally:
            for sandbox in sandboxes:
                sandbox.close()
        battle.host += _remaining(others)
        battle.host += [f"left in the temporary directory: {path.name}" for path in host.scratch.iterdir()]
        battle.host += host.changes()
    finally:
        host.close()
    return battle


def findings(fight: Fight, battle: Battle) -> list[str]:
    """What this program achieved that it should not have, in sentences."""
    execution, program = fight.execution, fight.program
    if execution is None:
        return [f"the sandbox failed: {fight.failure}"]
    found = []
    told = execution.output + execution.error
    if battle.key in told:
        found.append("it knows a secret")
    found += [line for line in execution.output.splitlines() if "ESCAPED" in line][:5]
    if is_pass(fight, battle.secret):
        found.append("it got a pass")
    if program.ends and execution.status not in program.ends:
        found.append(f"it ended as {execution.status}, not {' or '.join(program.ends)}: {execution.error[-200:]}")
    if fight.seconds > max(2 * program.limits.seconds, program.limits.seconds + 3) + PATIENCE:
        found.append(f"it took {fight.seconds:.1f} seconds")
    if len(execution.output) > program.limits.output_bytes or len(execution.error) > 1 << 20:
        found.append(f"{len(execution.output)} characters of output, {len(execution.error)} of errors came through")
    if fight.difference:
        found.append(f"the next program met another world: {fight.difference}")
    return found


def is_pass(fight: Fight, secret: str) -> bool:
    """Whether a judge would call this output right."""
    assert fight.execution is not None
    right = fight.token if fight.program.right == "token" else fight.program.right or secret
    if fight.execution.status != "finished":
        return False
    if fight.program.function is None:
        return fight.execution.output.split() == right.split()
    try:
        wanted = json.loads(right)
    except ValueError:
        wanted = right
    return bool(json.loads(fight.execution.output) == wanted)


def _fight_side_by_side(host: Host, sandboxes: list[Sandbox], programs: Sequence[Hostile], battle: Battle) -> None:
    worlds = [_world(sandbox) for sandbox in sandboxes]
    for world in worlds:
        if not world.startswith("{"):
            raise AssertionError(f"the plain program does not run: {world}")
    before = descendants()
    waiting: SimpleQueue[Hostile] = SimpleQueue()
    for program in programs:
        waiting.put(program)

    def work(sandbox: Sandbox, world: str) -> None:
        while True:
            try:
                program = waiting.get_nowait()
            except Empty:
                return
            fight, world = _fight(host, sandbox, world, program)
            battle.fights[program.name] = fight

    threads = [threading.Thread(target=work, args=pair) for pair in zip(sandboxes, worlds, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    battle.host += _too_many(len(before))


def _fight(host: Host, sandbox: Sandbox, world: str, program: Hostile) -> tuple[Fight, str]:
    token = f"token-{secrets.token_hex(8)}"
    facts = host.facts(program.name, token)
    job = Job(
        source=program.text,
        stdin=facts + "\n" if program.function is None else "",
        function=program.function,
        arguments=program.arguments or f"[{facts}]",
        limits=program.limits,
    )
    execution, failure, started = None, "", time.monotonic()
    try:
        execution = sandbox.execute(job)
    except SandboxError as error:
        failure = str(error)
    seconds = time.monotonic() - started
    after = _world(sandbox)
    difference = _difference(world, after)
    fight = Fight(
        program=program, token=token, execution=execution, failure=failure, seconds=seconds, difference=difference
    )
    return fight, after


def _world(sandbox: Sandbox) -> str:
    try:
        execution = sandbox.execute(_WORLD_JOB)
    except SandboxError as error:
        return f"the sandbox failed: {error}"
    return execution.output if execution.status == "finished" else f"{execution.status}: {execution.error}"


def _difference(first: str, second: str) -> str:
    try:
        one, two = json.loads(first), json.loads(second)
    except ValueError:
        return f"{first[:300]} became {second[:300]}"
    found = [f"{name}: {one[name]} became {two[name]}" for name in one if one[name] != two[name] and name != "process"]
    if one["parent"] == 1 and two["process"] < one["process"]:
        found.append("the runner had to be replaced")  # in namespaces of its own, process numbers start again
    return "; ".join(found)


def _remaining(expected: set[int]) -> list[str]:
    deadline = time.monotonic() + 10
    while (left := descendants() - expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {pid} lives on after closing" for pid in sorted(left)]


def _too_many(count: int) -> list[str]:
    deadline = time.monotonic() + 10
    while (now := len(descendants())) > count and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{now} processes where there were {count}"] if now > count else []


def main() -> int:
    """The command."""
    level, *names = sys.argv[1:]
    programs = [
        program
        for family, members in FAMILIES.items()
        for program in members
        if not names or family in names or program.name in names
    ]
    battle = fight_all(level, programs)
    lines = [f"{name}: {line}" for name, fight in battle.fights.items() for line in findings(fight, battle)]
    lines += battle.host
    with closing(open_sandbox(level)) as sandbox:
        complaints = {program.name: complaint(sandbox, program) for program in right.PROGRAMS}
    lines += [f"{name}: {said}" for name, said in complaints.items() if said]
    print(
        *lines,
        f"{len(battle.fights)} hostile and {len(complaints)} right programs, {len(lines)} findings at level {level}",
        sep="\n",
    )
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
