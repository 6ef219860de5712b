"""Programs that must get nothing: no pass, no secret, no foothold."""

from tests.sandbox.corpus import Hostile
from tests.sandbox.hostile import (
    cheating,
    connecting,
    control_channel,
    disk_bombs,
    endless,
    exiting,
    files_outside,
    forking,
    kernel_surface,
    lingering,
    memory_bombs,
    odd_sources,
    other_processes,
    output_bombs,
    reading,
    signalling,
)

FAMILIES: dict[str, tuple[Hostile, ...]] = {
    module.__name__.rpartition(".")[2]: module.PROGRAMS
    for module in (
        cheating,
        connecting,
        control_channel,
        disk_bombs,
        endless,
        exiting,
        files_outside,
        forking,
        kernel_surface,
        lingering,
        memory_bombs,
        odd_sources,
        other_processes,
        output_bombs,
        reading,
        signalling,
    )
}
