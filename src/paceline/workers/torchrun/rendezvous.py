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
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
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
"""Timeout of each message in the handshake, and of the whole of it, in seconds."""
HELLO_BYTES = 4096
ADDRESS = "channels"
"""Key of the first rank's address in the store."""
KINDS = ("calls", "heartbeats", "events")
REMEDY = f"set {SECRET} to the same random text for every rank"


@dataclass(frozen=True, kw_only=True, slots=True)
class SocketChannels:
    """Channels by rank: the first rank has one of each kind to every other rank, another rank has one to the first."""

    calls: Mapping[int, Connection]
    heartbeats: Mapping[int, Connection]
    events: Mapping[int, Connection]

    def send(self, ranks: Collection[int], message: Any) -> None:
        """Send the same message to several ranks, pickled once."""
        packed = ForkingPickler.dumps(message)
        for rank in ranks:
            try:
                self.calls[rank].send_bytes(packed)
            except OSError:
                raise RankLost(f"rank {rank} does not take calls any more") from None

    def receive(self, rank: int, *, seconds: float | None = None) -> Any:
        """Wait for a rank's next message, `seconds` at most; raises RankLost if none can come."""
        try:
            if not self.calls[rank].poll(seconds):
                raise RankLost(f"rank {rank} did not answer within {seconds:g} s")
            return self.calls[rank].recv()
        except (EOFError, OSError):
            raise RankLost(f"rank {rank} does not answer any more") from None

    def send_event(self, rank: int, message: Any) -> None:
        """Send a message that a rank receives also while it answers a call; raises RankLost if it is gone."""
        try:
            self.events[rank].send(message)
        except OSError:
            raise RankLost(f"rank {rank} does not take calls any more") from None

    def receive_event(self) -> Any:
        """Wait for the first rank's next event; raises OSError or EOFError if none can come."""
        return self.events[0].recv()

    def close(self) -> None:
        """Close all channels."""
        for channel in (*self.calls.values(), *self.heartbeats.values(), *self.events.values()):
            channel.close()


def open_store(process: Launched) -> dist.Store:
    """Connect to the store at the launch's address; the first rank opens it where the launcher has not.

    Raises:
        ProcessLost: no store answers at the address, or the port is taken.
    """
    try:
        store = dist.TCPStore(
            process.host,
            process.port,
            is_master=process.leads and not process.is_hosted,
            timeout=timedelta(seconds=JOIN_SECONDS),
            wait_for_workers=False,
        )
    except RuntimeError as error:  # torch raises no more special type
        reason = first_line(error)
        raise ProcessLost(
            f"rank {process.rank} of {process.size} cannot meet the others at {process.host}:{process.port} ({reason})"
        ) from None
    # a store that the launcher keeps open has the keys of earlier attempts too
    return dist.PrefixStore(f"paceline/{process.attempt}", store)


def open_channels(process: Launched, store: dist.Store) -> SocketChannels:
    """Open a channel of each kind between the first rank and every other.

    Raises:
        ProcessLost: a rank did not connect in time, or has another secret.
    """
    return _accept(process, store) if process.leads else _connect(process, store)


def _accept(process: Launched, store: dist.Store) -> SocketChannels:
    host = "127.0.0.1" if process.is_one_machine else process.host
    deadline, accepted = time.monotonic() + JOIN_SECONDS, {kind: dict[int, Connection]() for kind in KINDS}
    with offered_key(process) as key, socket.create_server((host, 0), backlog=2 * process.size) as server:
        store.set(ADDRESS, json.dumps({"host": host, "port": server.getsockname()[1]}))
        while any(len(channels) < process.size - 1 for channels in accepted.values()):
            server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                if time.monotonic() > deadline:  # strangers may come one after the other
                    raise TimeoutError
                channel = _channel(server.accept()[0], timeout=HELLO_SECONDS)
            except TimeoutError:
                missing = [rank for rank in range(1, process.size) if rank not in accepted["heartbeats"]]
                raise ProcessLost(
                    f"ranks {', '.join(map(str, missing))} of {process.size} did not come within {JOIN_SECONDS:g} s"
                ) from None
            if (peer := _hello(channel, key)) is None:
                channel.close()
                continue
            kind, rank = peer
            accepted[kind][rank] = channel
    return SocketChannels(**accepted)


def _hello(channel: Connection, key: bytes) -> tuple[str, int] | None:
    """Return channel kind and rank of a peer that has proved to have the key; None for any other peer.

    Each end proves it by a digest over random bytes of both, so the key is never sent and no proof can be replayed.
    """
    ours = secrets.token_hex(32)
    # each read has a timeout, which a stranger who sends one byte after the other never reaches
    whole = threading.Timer(HELLO_SECONDS, _shut_down, (channel,))
    whole.start()
    try:
        channel.send_bytes(json.dumps(ours).encode())
        hello = json.loads(channel.recv_bytes(HELLO_BYTES))
        kind, rank, theirs = KINDS[KINDS.index(hello["kind"])], int(hello["rank"]), str(hello["random"])
        if not hmac.compare_digest(str(hello["proof"]).encode(), _proof(key, "rank", ours, theirs, kind, rank)):
            return None
        channel.send_bytes(_proof(key, "first rank", ours, theirs, kind, rank))
        _set_timeout(channel, 0.0)
    except (EOFError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        whole.cancel()
    return kind, rank


def _shut_down(channel: Connection) -> None:
    """End a connection in both directions, so that reads and writes of another thread end too."""
    with suppress(OSError), socket.socket(fileno=os.dup(channel.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def _connect(process: Launched, store: dist.Store) -> SocketChannels:
    channels = dict[str, dict[int, Connection]]()
    try:
        address = json.loads(store.get(ADDRESS))
        key = shared_key(process)
        for kind in KINDS:
            connected = socket.create_connection((address["host"], address["port"]), timeout=JOIN_SECONDS)
            channel = _channel(connected, timeout=JOIN_SECONDS)
            theirs, ours = str(json.loads(channel.recv_bytes(HELLO_BYTES))), secrets.token_hex(32)
            proof = _proof(key, "rank", theirs, ours, kind, process.rank).decode()
            hello = {"kind": kind, "rank": process.rank, "random": ours, "proof": proof}
            channel.send_bytes(json.dumps(hello).encode())
            answer = _proof(key, "first rank", theirs, ours, kind, process.rank)
            if not hmac.compare_digest(channel.recv_bytes(HELLO_BYTES), answer):
                raise EOFError
            _set_timeout(channel, 0.0)
            channels[kind] = {0: channel}
    except EOFError:
        raise ProcessLost(
            f"rank {process.rank} of {process.size} and the first rank do not have the same secret; {REMEDY}"
        ) from None
    except (RuntimeError, OSError, ValueError) as error:  # the store's, the channel's, a message that is no JSON
        reason = first_line(error)
        raise ProcessLost(f"rank {process.rank} of {process.size} cannot reach the first rank ({reason})") from None
    return SocketChannels(**channels)


def _proof(key: bytes, whose: str, *words: str | int) -> bytes:
    return hmac.new(key, json.dumps([whose, *words]).encode(), "sha256").hexdigest().encode()


def _channel(connected: socket.socket, *, timeout: float) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    _set_timeout(channel, timeout)
    return channel


def _set_timeout(channel: Connection, seconds: float) -> None:
    """Set the timeout of each read; 0 means none, as after the handshake heartbeats report the loss of a rank."""
    with socket.socket(fileno=os.dup(channel.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


# --- the shared secret of a launch
#
# Channels between ranks carry pickles, so a peer that connects can run code. The store answers anybody who reaches its
# port, so it holds no secret. On one machine the secret is in a file that only its user may read; on several machines
# it is an environment variable of the launch.


@contextmanager
def offered_key(process: Launched) -> Iterator[bytes]:
    """Publish the first rank's key to the other ranks for the duration of the context.

    Raises:
        ProcessLost: the file with the key cannot be written.
    """
    if process.secret is not None:
        yield process.secret.encode()
        return
    file, key = _file(process), secrets.token_hex(32)
    try:
        file.unlink(missing_ok=True)  # left by a launch that was killed
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ProcessLost(
            f"{file}, the file with the ranks' secret, cannot be written ({error.strerror}); {REMEDY}"
        ) from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(key)
        yield key.encode()
    finally:
        file.unlink(missing_ok=True)


def shared_key(process: Launched) -> bytes:
    """Return the key that the first rank has published.

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
            f"{file}, the file with the ranks' secret, cannot be read ({error.strerror}); {REMEDY}"
        ) from None
    with os.fdopen(descriptor) as stream:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ProcessLost(f"{file}, the file with the ranks' secret, is not this user's alone; {REMEDY}")
        return stream.read().encode()


def _file(process: Launched) -> Path:
    """Return a path that all ranks derive alike. A path from the store could be any file that a stranger chose."""
    return Path(tempfile.gettempdir()) / f"paceline-ranks-{os.getuid()}-{process.port}-{process.attempt}"
