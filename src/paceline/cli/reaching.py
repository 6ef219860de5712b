"""Whether somebody listens where a cluster is said to be: Ray itself would look for minutes."""

import socket

from paceline.config.sections import ClusterConfig
from paceline.errors import ConfigError

SECONDS = 3.0
"""Between machines of one cluster a connection takes milliseconds."""


def check_reachable(options: ClusterConfig) -> None:
    """Refuse an address of a cluster at which nobody listens.

    Raises:
        ConfigError: it is no HOST:PORT, or no connection comes about.
    """
    address = options.ray_address
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--ray-address must be HOST:PORT or auto, got {address!r}; Ray's own port is 6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
    except OSError as error:
        why = error.strerror or "it does not answer"
        raise ConfigError(
            f"--ray-address must be a running Ray cluster's, got {address!r} ({why}); start one with "
            "`ray start --head`, or leave it out"
        ) from None
