"""`paceline rollouts`: the completions of a run on a local page, or as a directory."""

import os
import sys
import webbrowser

from paceline.base_directory import hold_base, named_path
from paceline.cli.arguments import Command, CommandFlag, parse_behind_run, port_of
from paceline.errors import DONE, ConfigError
from paceline.runtime.shown_text import OwnOutput, visible
from paceline.training.setup.file_names import run_base

PORT = CommandFlag(name="port", metavar="N", help="Port on 127.0.0.1; 0 takes one that is free. (default: 0)")
OPEN = CommandFlag(
    name="open", metavar="true|false", help="Whether to open a browser where there is a screen. (default: true)"
)
STATIC = CommandFlag(
    name="static",
    metavar="DIRECTORY",
    help="Write the page with everything that it shows into a new directory instead, whose index.html opens without a "
    "server, and end.",
)
COMMAND = Command(
    name="rollouts",
    usage="paceline rollouts RUN [--port N] [--open false] | --static DIRECTORY",
    summary="Every completion of a run, finished or not, to search, filter and read: groups side by side, tokens in "
    "colours, suspicious ones first. The page is served to this machine alone, until Ctrl-C; nothing is written.",
    flags=(PORT, OPEN, STATIC),
    options=(),
)


def run(argv: list[str]) -> int:
    """Serve or write the page; returns the exit status."""
    path, arguments = parse_behind_run(COMMAND, argv, form="runs/NAME")
    port, opened = port_of(arguments.flags.get("port", "0")), arguments.flags.get("open", "true")
    if opened not in ("true", "false"):
        raise ConfigError(f"--open must be true or false, got {opened!r}")
    from paceline.reports.viewer.documents import Documents
    from paceline.reports.viewer.serving import PageServer, export

    hold_base(run_base(path))
    documents = Documents(path, on_part=lambda done, of: _tell(f"read {done} of {of} files"))
    if "static" in arguments.flags:
        out = named_path(arguments.flags["static"])
        written = export(documents, out, on_document=lambda done: _tell(f"written {done} files"))
        _tell("")
        print(written)
        return DONE
    _tell("")
    with PageServer(documents, port) as server:
        print(f"{server.url}\nfor this machine alone, until Ctrl-C", flush=True)
        # without a screen, webbrowser starts a browser of the terminal, in which this command's address would be lost
        on_x = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
        if opened == "true" and (on_x or sys.platform in ("darwin", "win32")):
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
    return DONE


def _tell(progress: str) -> None:
    """Print a line that the next one overwrites, on a terminal only."""
    if sys.stderr.isatty():
        OwnOutput("stderr").write(f"\r\x1b[K{visible(progress)}")
        sys.stderr.flush()
