"""`paceline serve`: serve a model over OpenAI's interface to any number of clients at once."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from paceline.cli.arguments import CONFIG, Command, CommandFlag, parse, port_of
from paceline.cli.libraries import loading_libraries
from paceline.config.reading import options
from paceline.errors import DONE, INTERRUPTED, ConfigError
from paceline.runtime.interrupts import StopRequest
from paceline.serving.loading import load, read_options

KEY = "PACELINE_API_KEY"
"""Environment variable with the key that clients must send."""
POLL_SECONDS = 0.2
"""Seconds between two checks for a signal to stop."""

HOST = CommandFlag(
    name="host",
    metavar="ADDRESS",
    help="Address to listen on; 0.0.0.0 is every address of this machine, without encryption. (default: 127.0.0.1)",
)
PORT = CommandFlag(name="port", metavar="N", help="Port; 0 takes one that is free. (default: 8000)")
API_KEY = CommandFlag(
    name="api_key",
    metavar="TEXT",
    help=f"Key that clients must send. The environment variable {KEY} sets it too, and hides it from other users of "
    "this machine. (default: a new key, which is printed)",
)
STOP_GRACE = CommandFlag(
    name="stop_grace",
    metavar="SECONDS",
    help="Time to finish responses in progress after a signal to stop; new requests are refused. (default: 25)",
)
END_WITH_INPUT = CommandFlag(
    name="end_with_input",
    help="Stop, as at a signal, when standard input ends, also while the model is being loaded. A program that starts "
    "the server with a pipe as its input then leaves no server behind, however the program ends.",
)
SECTIONS = ("model", "engine", "sampling")
TRAINING_ONLY = ("gradient_checkpointing", "deterministic", "num_generations")
PROMPT_OPTIONS = (
    *("enable_thinking", "chat_template_kwargs", "max_prompt_length"),
    *("image_max_pixels", "image_min_pixels", "max_images_per_prompt"),
)
OPTIONS = tuple(
    option
    for option in options()
    if (option.section in SECTIONS and option.name not in TRAINING_ONLY) or option.name in PROMPT_OPTIONS
)
"""Options of a served model."""
COMMAND = Command(
    name="serve",
    usage="paceline serve --model MODEL [--port N] [--option value ...]",
    summary="Respond to requests by OpenAI's interface from a model: a directory, a Hub name, a GGUF file, a run's "
    "directory, or one that ships with the package. Requests at the same time share the engine's batch, and tokens are "
    "streamed as they are sampled. The options are the defaults of a request. The first signal to stop (Ctrl-C) lets "
    "responses in progress end, a second one does not.",
    flags=(CONFIG, HOST, PORT, API_KEY, STOP_GRACE, END_WITH_INPUT),
    options=OPTIONS,
)


def run(argv: list[str]) -> int:
    """Serve until a signal to stop; returns the exit status."""
    arguments = parse(COMMAND, argv)
    if "end_with_input" in arguments.flags:
        threading.Thread(target=_stop_at_end_of_input, name="input", daemon=True).start()
    host, port = arguments.flags.get("host", "127.0.0.1"), port_of(arguments.flags.get("port", "8000"))
    grace = _seconds(arguments.flags.get("stop_grace", "25"))
    key = arguments.flags.get("api_key", os.environ.get(KEY))
    if key is not None and not (key.strip() == key and key.isascii() and key.isprintable() and key):
        raise ConfigError("--api-key must be one line of ASCII text without blanks at its ends; give another key")
    configuration = read_options(arguments.options, file=arguments.flags.get("config"), runs=("trust_remote_code",))
    print(configuration.origin, flush=True)
    model = load(configuration.config, say=lambda note: print(note, flush=True), loading=loading_libraries)
    from paceline.serving.server import ModelServer

    server = ModelServer(model, host=host, port=port, key=key)

    def stop_when_asked() -> int:
        while stop.received is None and not server.wait(POLL_SECONDS):
            pass
        if stop.received is not None:
            print(f"{stop.received}: responses in progress have {grace:g} seconds to finish", flush=True)
        broken = server.stop(grace)
        if not server.wait(0):  # the main thread is stuck in a step of the engine and sees no signal
            print(f"ended in the middle of a step; unfinished responses: {broken}", flush=True)
            os._exit(INTERRUPTED)
        return broken

    with StopRequest() as stop, ThreadPoolExecutor(1, thread_name_prefix="stop") as other_thread:
        print(f"{model.name} responds at {server.endpoint.base_url}, until Ctrl-C")
        print(f"key: {server.endpoint.key if key is None else 'as it was given'}", flush=True)
        stopped = other_thread.submit(stop_when_asked)
        model.run()
        broken = stopped.result()
    if stop.received is None:
        assert server.failure is not None
        raise server.failure
    print("ended" if not broken else f"ended; unfinished responses: {broken}")
    return INTERRUPTED if broken else DONE


def _stop_at_end_of_input() -> None:
    with suppress(OSError):  # standard input is closed
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise ConfigError(f"--stop-grace must be a number of seconds from 0 on, got {text!r}")
    return seconds
