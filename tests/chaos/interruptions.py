"""Faults that come from outside while a run goes on: signals, the disk, the clock, the terminal, another process."""

import os
import signal
import subprocess
from pathlib import Path

from paceline.checkpoints.run_directory import RunDir
from tests.chaos.runs import OPTIONS, mischief
from tests.chaos.sabotage import Trap
from tests.chaos.scene import REMEDY, Impossible, Scene, must

GENERATE = "paceline.engines.local.engine:LocalEngine.generate"
UPDATE = "paceline.training.learner.learner:Learner.step"


def _interrupted(scene: Scene, trap: Trap) -> None:
    place = scene.place()
    must(place.train(traps=[trap]), 130, REMEDY)
    assert place.checkpoints(), "no checkpoint was written"
    scene.must_resume(place)


def sigterm_in_generation(scene: Scene) -> None:
    _interrupted(scene, Trap(function=GENERATE, deed="SIGTERM", first=4))


def sigterm_in_update(scene: Scene) -> None:
    _interrupted(scene, Trap(function=UPDATE, deed="SIGTERM", first=3))


def sigterm_in_save(scene: Scene) -> None:
    _interrupted(scene, Trap(function="os:fsync", deed="SIGTERM", first=_in_second_save(scene)))


def sighup(scene: Scene) -> None:
    _interrupted(scene, Trap(function=UPDATE, deed="SIGHUP", first=3))


def sigterm_twice(scene: Scene) -> None:
    place = scene.place()
    must(place.train(traps=[Trap(function=UPDATE, deed="two SIGTERM", first=4)]), 130)
    scene.must_resume(place)  # the second one does not wait for the checkpoint that is being written


def stopped_and_continued(scene: Scene) -> None:
    place = scene.place()
    running = place.begin()
    running.ends_within(scene.life.seconds / 2)
    running.send(signal.SIGSTOP)
    running.ends_within(1.0)
    running.send(signal.SIGCONT)
    must(running.end(), 0)
    scene.must_be_whole(place.outcome())


def clock_jumps(scene: Scene) -> None:
    place = scene.place()
    must(place.train(traps=[Trap(function="time:time", deed="an hour back", first=5, last=10**9)]), 0)
    scene.must_be_whole(place.outcome())


def slow_disk(scene: Scene) -> None:
    place = scene.place()
    must(place.train(traps=[Trap(function="os:fsync", deed="slow", first=20, last=40)]), 0)
    scene.must_be_whole(place.outcome())


def _disk_refuses(scene: Scene, deed: str, call: int, words: str) -> None:
    place = scene.place()
    ended = place.train(traps=[Trap(function="os:fsync", deed=deed, first=call)])
    must(ended, 1, words, "resume")
    scene.must_resume(place)


def _in_second_save(scene: Scene) -> int:
    """A call of fsync in the midst of a save: two thirds of them are of the three saves."""
    return scene.life.writes["os:fsync"] * 3 // 5


def full_disk_in_save(scene: Scene) -> None:
    _disk_refuses(scene, "disk full", _in_second_save(scene), "No space left on device")


def broken_disk_in_save(scene: Scene) -> None:
    _disk_refuses(scene, "disk broken", _in_second_save(scene), "Input/output error")


def read_only_disk_in_save(scene: Scene) -> None:
    _disk_refuses(scene, "read-only", _in_second_save(scene), "Read-only file system")


def full_disk_at_any_write(scene: Scene) -> None:
    """Each eighth write of a run, one run each."""
    for number, call in enumerate(range(10, scene.life.writes["os:fsync"] - 5, 8)):
        place = scene.place(f"place-{number}")
        ended = place.train(traps=[Trap(function="os:fsync", deed="disk full", first=call)])
        must(ended, 1, "No space left on device", "resume")
        scene.must_resume(place)


def small_disk(scene: Scene) -> None:
    """A file system of its own, which something else fills in step 4; then there is room again."""
    if os.geteuid() != 0:
        raise Impossible("only root mounts file systems")
    place = scene.place()
    disk = place.folder / "run"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode:
        raise Impossible(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        mischief(
            place,
            "if (PLACE / 'scored').read_text().count(chr(10)) < 130: return",
            "try: (PLACE / 'run' / 'filler').write_bytes(bytes(2**25))",
            "except OSError: pass",
        )
        must(place.train(), 1, "No space left on device", "resume")
        (disk / "filler").unlink()
        scene.must_resume(place, override="reward_funcs")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def directory_that_cannot_be_written(scene: Scene) -> None:
    place = scene.place()
    must(place.train("--output-dir", "/proc/run"), 2, "--output-dir /proc/run", "where you may write")


def two_processes(scene: Scene) -> None:
    place = scene.stopped(last=4)
    with RunDir.open(place.run.path):
        must(place.resume(), 2, f"run is in use by process {os.getpid()}")
    scene.must_resume(place)


def closed_output(scene: Scene) -> None:
    """What `paceline train | head -1` does after its first line."""
    place = scene.place()
    must(place.train(closed_output=True), 0)
    scene.must_be_whole(place.outcome())


def odd_path(scene: Scene) -> None:
    place = scene.place("mit Leerzeichen, é und ☃ 'quoted'")
    must(place.train(umask=0o077), 0)
    scene.must_be_whole(place.outcome())


def killed_in_export(scene: Scene) -> None:
    place = scene.place()
    ended = place.train(traps=[Trap(function="paceline.training.session:draw_page", deed="SIGKILL")])
    assert ended.returncode == -signal.SIGKILL
    assert (place.run.path / "final").exists()
    scene.must_resume(place)


def killed_at_every_rename(scene: Scene) -> None:
    """Between any two renames there is a whole checkpoint, or none yet."""
    for call in range(1, scene.life.writes["os:rename"] + 1):
        place = scene.place(f"place-{call}")
        assert place.train(traps=[Trap(function="os:rename", deed="SIGKILL", first=call)]).returncode == -signal.SIGKILL
        scene.must_resume(place)


def steps_of(run: Path) -> list[int]:
    """That have a line."""
    return [record["step"] for record in RunDir(run).metrics()]


assert OPTIONS["save_steps"] == 2  # the sentences above count on it
