"""Where the ranks of a launch find each other: a store, and lines between the first of them and every other.

A process group tells a rank that another is late, and after half an hour; a line ends the moment its other end does. So
calls and answers go over lines, gradients over the group.
"""

import hmac
import json
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.distributed as dist

from paceline.errors import ProcessLost, first_line
from paceline.parallel import JOIN_SECONDS, RankLost
from paceline.spmd.environment import Launched

HELLO_SECONDS = 10.0
"""That one who has come may take to say who it is."""
HELLO_BYTES = 4096
PLACE = "lines"
"""Where the store has the first rank's address and the word that lets one in."""
KINDS = ("calls", "life")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """By rank of who is at their other end: the first rank has one of each to every other, each other one to it."""

    calls: Mapping[int, Connection]
    life: Mapping[int, Connection]

    def send(self, ranks: Collection[int], message: Any) -> None:
        """The same message to several, turned into bytes once; a rank that is gone is found out by its lifeline."""
        packed = ForkingPickler.dumps(message)
        for rank in ranks:
            try:
                self.calls[rank].send_bytes(packed)
            except OSError:
                raise RankLost(f"rank {rank} does not take calls any more") from None

    def receive(self, rank: int) -> Any:
        """The next message from a rank.

        Raises:
            RankLost: none will come.
        """
        try:
            return self.calls[rank].recv()
        except (EOFError, OSError):
            raise RankLost(f"rank {rank} does not answer any more") from None

    def close(self) -> None:
        """Close them all."""
        for line in (*self.calls.values(), *self.life.values()):
            line.close()


def open_store(place: Launched) -> dist.Store:
    """The store at the launch's address, which the first rank opens where the launcher has not.

    Raises:
        ProcessLost: nobody is there, or the port is taken.
    """
    try:
        store = dist.TCPStore(
            place.host,
            place.port,
            is_master=place.leads and not place.is_hosted,
            timeout=timedelta(seconds=JOIN_SECONDS),
            wait_for_workers=False,
        )
    except RuntimeError as error:  # torch has no other kind for it
        reason = first_line(error)
        raise ProcessLost(
            f"rank {place.rank} of {place.size} cannot meet the others at {place.host}:{place.port} ({reason})"
        ) from None
    # what a launcher keeps open is the same store at every attempt
    return dist.PrefixStore(f"paceline/{place.attempt}", store)


def draw_lines(place: Launched, store: dist.Store) -> Lines:
    """A line for calls and one for signs of life between the first rank and every other.

    Raises:
        ProcessLost: not all of them came.
    """
    return _accept(place, store) if place.leads else _connect(place, store)


def _accept(place: Launched, store: dist.Store) -> Lines:
    word = secrets.token_hex(32)
    host = "127.0.0.1" if place.is_one_machine else place.host
    deadline, found = time.monotonic() + JOIN_SECONDS, {kind: dict[int, Connection]() for kind in KINDS}
    with socket.create_server((host, 0), backlog=2 * place.size) as server:
        store.set(PLACE, json.dumps({"host": host, "port": server.getsockname()[1], "word": word}))
        while any(len(lines) < place.size - 1 for lines in found.values()):
            server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                line = _line(server.accept()[0])
            except TimeoutError:
                missing = [rank for rank in range(1, place.size) if rank not in found["life"]]
                raise ProcessLost(
                    f"ranks {', '.join(map(str, missing))} of {place.size} did not come within {JOIN_SECONDS:g} s"
                ) from None
            hello = _hello(line)
            if hello is None or not hmac.compare_digest(hello["word"], word):
                line.close()  # a stranger
                continue
            found[hello["kind"]][hello["rank"]] = line
    return Lines(**found)


def _hello(line: Connection) -> dict[str, Any] | None:
    """What one who has come says of itself; None: nothing that a rank would say."""
    try:
        if not line.poll(HELLO_SECONDS):
            return None
        said = json.loads(line.recv_bytes(HELLO_BYTES))
        return {"word": str(said["word"]), "kind": KINDS[KINDS.index(said["kind"])], "rank": int(said["rank"])}
    except (EOFError, OSError, ValueError, KeyError, TypeError):
        return None


def _connect(place: Launched, store: dist.Store) -> Lines:
    lines = dict[str, dict[int, Connection]]()
    try:
        where = json.loads(store.get(PLACE))
        for kind in KINDS:
            line = _line(socket.create_connection((where["host"], where["port"]), timeout=JOIN_SECONDS))
            line.send_bytes(json.dumps({"word": where["word"], "kind": kind, "rank": place.rank}).encode())
            lines[kind] = {0: line}
    except (RuntimeError, OSError) as error:  # of the store, of the line
        reason = first_line(error)
        raise ProcessLost(f"rank {place.rank} of {place.size} cannot reach the first rank ({reason})") from None
    return Lines(**lines)


def _line(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connected.detach())
