"""Rendezvous of a launch's ranks: a store, and channels between the first rank and every other.

A process group reports a late rank after half an hour; a channel ends the moment its other end does. So calls and
answers go over channels, gradients over the group.
"""

import hmac
import json
import os
import secrets
import socket
import struct
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paceline.errors import ProcessLost, first_line
from paceline.models.parallel.process_group import JOIN_SECONDS, RankLost
from paceline.workers.torchrun.environment import SECRET, Launched

HELLO_SECONDS = 10.0
"""Timeout of each message in the handshake, in seconds."""
HELLO_BYTES = 4096
PLACE = "channels"
"""Key of the first rank's address in the store."""
KINDS = ("calls", "life", "beside")
REMEDY = f"set {SECRET} to the same random text for every rank"


@dataclass(frozen=True, kw_only=True, slots=True)
class SocketChannels:
    """Channels by rank: the first rank has one of each kind to every other, any other has one to it."""

    calls: Mapping[int, Connection]
    life: Mapping[int, Connection]
    beside: Mapping[int, Connection]

    def send(self, ranks: Collection[int], message: Any) -> None:
        """Send the same message to several ranks, pickled once."""
        packed = ForkingPickler.dumps(message)
        for rank in ranks:
            try:
                self.calls[rank].send_bytes(packed)
            except OSError:
                raise RankLost(f"rank {rank} does not take calls any more") from None

    def receive(self, rank: int, *, seconds: float | None = None) -> Any:
        """Wait for a rank's next message, `seconds` at most; raises RankLost where none will come."""
        try:
            if not self.calls[rank].poll(seconds):
                raise RankLost(f"rank {rank} did not answer within {seconds:g} s")
            return self.calls[rank].recv()
        except (EOFError, OSError):
            raise RankLost(f"rank {rank} does not answer any more") from None

    def tell(self, rank: int, message: Any) -> None:
        """Send a message to a rank beside its calls; raises RankLost where it takes none."""
        try:
            self.beside[rank].send(message)
        except OSError:
            raise RankLost(f"rank {rank} does not take calls any more") from None

    def receive_event(self) -> Any:
        """Wait for the first rank's next message beside its calls; raises OSError or EOFError where none will come."""
        return self.beside[0].recv()

    def close(self) -> None:
        """Close all channels."""
        for channel in (*self.calls.values(), *self.life.values(), *self.beside.values()):
            channel.close()


def open_store(process: Launched) -> dist.Store:
    """Connect to the store at the launch's address; the first rank opens it where the launcher has not.

    Raises:
        ProcessLost: nobody is there, or the port is taken.
    """
    try:
        store = dist.TCPStore(
            process.host,
            process.port,
            is_master=process.leads and not process.is_hosted,
            timeout=timedelta(seconds=JOIN_SECONDS),
            wait_for_workers=False,
        )
    except RuntimeError as error:  # torch has no other kind for it
        reason = first_line(error)
        raise ProcessLost(
            f"rank {process.rank} of {process.size} cannot meet the others at {process.host}:{process.port} ({reason})"
        ) from None
    # what a launcher keeps open is the same store at every attempt
    return dist.PrefixStore(f"paceline/{process.attempt}", store)


def open_channels(process: Launched, store: dist.Store) -> SocketChannels:
    """Open a channel for calls and one for heartbeats between the first rank and every other.

    Raises:
        ProcessLost: not all of them came.
    """
    return _accept(process, store) if process.leads else _connect(process, store)


def _accept(process: Launched, store: dist.Store) -> SocketChannels:
    host = "127.0.0.1" if process.is_one_machine else process.host
    deadline, accepted = time.monotonic() + JOIN_SECONDS, {kind: dict[int, Connection]() for kind in KINDS}
    with offered_key(process) as key, socket.create_server((host, 0), backlog=2 * process.size) as server:
        store.set(PLACE, json.dumps({"host": host, "port": server.getsockname()[1]}))
        while any(len(channels) < process.size - 1 for channels in accepted.values()):
            server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                channel = _channel(server.accept()[0], patience=HELLO_SECONDS)
            except TimeoutError:
                missing = [rank for rank in range(1, process.size) if rank not in accepted["life"]]
                raise ProcessLost(
                    f"ranks {', '.join(map(str, missing))} of {process.size} did not come within {JOIN_SECONDS:g} s"
                ) from None
            who = _hello(channel, key)
            if who is None:
                channel.close()  # a stranger
                continue
            accepted[who[0]][who[1]] = channel
    return SocketChannels(**accepted)


def _hello(channel: Connection, key: bytes) -> tuple[str, int] | None:
    """Kind and rank of a peer that has proved to have the key; None for a stranger.

    Each end proves it over random bytes of both, so neither an overheard proof nor the key itself is of use.
    """
    ours = secrets.token_hex(32)
    try:
        channel.send_bytes(json.dumps(ours).encode())
        hello = json.loads(channel.recv_bytes(HELLO_BYTES))
        kind, rank, theirs = KINDS[KINDS.index(hello["kind"])], int(hello["rank"]), str(hello["random"])
        if not hmac.compare_digest(str(hello["proof"]).encode(), _proof(key, "rank", ours, theirs, kind, rank)):
            return None
        channel.send_bytes(_proof(key, "first rank", ours, theirs, kind, rank))
        _be_patient(channel, 0.0)
    except (EOFError, OSError, ValueError, KeyError, TypeError):
        return None
    return kind, rank


def _connect(process: Launched, store: dist.Store) -> SocketChannels:
    channels = dict[str, dict[int, Connection]]()
    try:
        where = json.loads(store.get(PLACE))
        key = shared_key(process)
        for kind in KINDS:
            connected = socket.create_connection((where["host"], where["port"]), timeout=JOIN_SECONDS)
            channel = _channel(connected, patience=JOIN_SECONDS)
            theirs, ours = str(json.loads(channel.recv_bytes(HELLO_BYTES))), secrets.token_hex(32)
            proof = _proof(key, "rank", theirs, ours, kind, process.rank).decode()
            hello = {"kind": kind, "rank": process.rank, "random": ours, "proof": proof}
            channel.send_bytes(json.dumps(hello).encode())
            answer = _proof(key, "first rank", theirs, ours, kind, process.rank)
            if not hmac.compare_digest(channel.recv_bytes(HELLO_BYTES), answer):
                raise EOFError
            _be_patient(channel, 0.0)
            channels[kind] = {0: channel}
    except EOFError:
        raise ProcessLost(
            f"rank {process.rank} of {process.size} and the first rank have not the same secret; {REMEDY}"
        ) from None
    except (RuntimeError, OSError, ValueError) as error:  # of the store, of the channel
        reason = first_line(error)
        raise ProcessLost(f"rank {process.rank} of {process.size} cannot reach the first rank ({reason})") from None
    return SocketChannels(**channels)


def _proof(key: bytes, whose: str, *words: str | int) -> bytes:
    return hmac.new(key, json.dumps([whose, *words]).encode(), "sha256").hexdigest().encode()


def _channel(connected: socket.socket, *, patience: float) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    _be_patient(channel, patience)
    return channel


def _be_patient(channel: Connection, seconds: float) -> None:
    """Set the timeout of one part of a message; 0 means none, as heartbeats report the end of a rank."""
    with socket.socket(fileno=os.dup(channel.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


# --- the shared secret of a launch
#
# Channels between ranks carry pickles, so whoever connects can run code. The store answers whoever reaches its port, so
# it holds no secret. On one machine the secret is a file that only its user may read; on several machines it is a
# variable of the launch.


@contextmanager
def offered_key(process: Launched) -> Iterator[bytes]:
    """Publish the first rank's key to the others, for the duration of the context.

    Raises:
        ProcessLost: the file cannot be made.
    """
    if process.secret is not None:
        yield process.secret.encode()
        return
    file, key = _file(process), secrets.token_hex(32)
    try:
        file.unlink(missing_ok=True)  # of a launch that was killed
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ProcessLost(
            f"{file}, by which ranks know each other, cannot be made ({error.strerror}); {REMEDY}"
        ) from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(key)
        yield key.encode()
    finally:
        file.unlink(missing_ok=True)


def shared_key(process: Launched) -> bytes:
    """Key of any other rank, once the first rank has published it.

    Raises:
        ProcessLost: the file is not there, or another user can read or has made it.
    """
    if process.secret is not None:
        return process.secret.encode()
    file = _file(process)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ProcessLost(
            f"{file}, by which ranks know each other, cannot be read ({error.strerror}); {REMEDY}"
        ) from None
    with os.fdopen(descriptor) as stream:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ProcessLost(f"{file}, by which ranks know each other, is not this user's alone; {REMEDY}")
        return stream.read().encode()


def _file(process: Launched) -> Path:
    """Path that is the same on all ranks and never comes from the store, which could name any file."""
    return Path(tempfile.gettempdir()) / f"paceline-ranks-{os.getuid()}-{process.port}-{process.attempt}"
