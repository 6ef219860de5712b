"""How ranks of a launch meet, and who is not let in: channels carry pickles."""

import json
import os
import socket
import threading
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest
import torch.distributed as dist

from paceline.errors import ProcessLost
from paceline.workers.torchrun import rendezvous
from paceline.workers.torchrun.environment import Launched
from paceline.workers.torchrun.rendezvous import ADDRESS, open_channels


@pytest.fixture
def first(tmp_path, monkeypatch) -> Launched:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Launched(
        rank=0,
        size=2,
        local_rank=0,
        local_size=2,
        host="127.0.0.1",
        port=29500,
        is_hosted=True,
        attempt=0,
        cores=None,
        has_own_devices=False,
    )


class Leading(threading.Thread):
    """The first rank, in a thread of its own."""

    def __init__(self, place: Launched, store: dist.Store) -> None:
        super().__init__(daemon=True)
        self.place, self.store = place, store
        self.start()

    def run(self) -> None:
        self.channels = open_channels(self.place, self.store)


def connected(store: dist.Store) -> Connection:
    """A channel of one who knows what the store says."""
    address = json.loads(store.get(ADDRESS))
    return Connection(socket.create_connection((address["host"], address["port"])).detach())


def test_ranks_of_one_machine_meet_by_a_file_that_is_gone_afterwards(first, tmp_path):
    store = dist.HashStore()
    leading = Leading(first, store)
    store.get(ADDRESS)
    (file,) = tmp_path.iterdir()
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o600, os.getuid())
    assert file.read_text() not in store.get(ADDRESS).decode()
    theirs = open_channels(replace(first, rank=1), store)
    leading.join(timeout=60)
    leading.channels.send([1], "update")
    assert theirs.receive(0) == "update"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["a false proof", "brackets"])
def test_who_knows_the_store_alone_is_not_let_in_and_keeps_nobody_out(first, form):
    store = dist.HashStore()
    leading = Leading(first, store)
    stranger = connected(store)
    theirs = json.loads(stranger.recv_bytes())
    assert len(theirs) == 64
    hello = json.dumps({"kind": "calls", "rank": 1, "random": theirs, "proof": theirs}).encode()
    stranger.send_bytes(hello if form == "a false proof" else b"[" * 4096)
    with pytest.raises((EOFError, ConnectionResetError)):
        stranger.recv_bytes()
    channels = open_channels(replace(first, rank=1), store)
    leading.join(timeout=60)
    assert (list(leading.channels.calls), list(channels.calls)) == ([1], [0])


def test_a_stranger_who_sends_byte_after_byte_does_not_keep_ranks_from_meeting(first, monkeypatch):
    monkeypatch.setattr(rendezvous, "HELLO_SECONDS", 1.5)
    store, is_over = dist.HashStore(), threading.Event()
    leading = Leading(first, store)
    stranger = connected(store)
    stranger.recv_bytes()

    def trickle() -> None:
        with socket.socket(fileno=os.dup(stranger.fileno())) as same:
            same.sendall((4000).to_bytes(4, "big"))
            while not is_over.wait(0.2):  # each read ends long before its own timeout
                try:
                    same.sendall(b"[")
                except OSError:  # the first rank has shut the connection down
                    return

    trickling = threading.Thread(target=trickle, daemon=True)
    trickling.start()
    channels = open_channels(replace(first, rank=1), store)
    leading.join(timeout=60)
    is_over.set()
    trickling.join(timeout=60)
    assert (list(leading.channels.calls), list(channels.calls)) == ([1], [0])


def test_a_false_first_rank_is_not_believed(first):
    store, place = dist.HashStore(), replace(first, rank=1, secret="a secret of this launch")
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set(ADDRESS, json.dumps({"host": "127.0.0.1", "port": server.getsockname()[1]}))

        def lead():
            channel = Connection(server.accept()[0].detach())
            channel.send_bytes(b'"00"')
            hello = json.loads(channel.recv_bytes())
            channel.send_bytes(hello["proof"].encode())  # its own proof, sent back

        threading.Thread(target=lead, daemon=True).start()
        with pytest.raises(ProcessLost, match="rank 1 of 2 and the first rank do not have the same secret; set"):
            open_channels(place, store)


def test_a_file_that_others_can_read_is_no_secret(first, tmp_path):
    store = dist.HashStore()
    store.set(ADDRESS, "{}")
    file = tmp_path / f"paceline-ranks-{os.getuid()}-29500-0"
    file.write_text("known to all")
    file.chmod(0o644)
    with pytest.raises(ProcessLost, match="is not this user's alone; set PACELINE_RANKS_SECRET"):
        open_channels(replace(first, rank=1), store)
