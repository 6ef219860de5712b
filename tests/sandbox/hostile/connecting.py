"""Programs that talk to the network or to sockets of the host."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="tcp",
        source=r"""
import socket
def talk():
    with socket.create_connection(("127.0.0.1", facts["tcp"]), timeout=1) as peer:
        peer.sendall(b"tcp got out")
        return peer.recv(100)
attempt("tcp", talk)
""",
        bites=True,
    ),
    Hostile(
        name="tcp_by_fast_open",
        source=r"""
import socket
def talk():
    peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    return peer.sendto(b"fast open got out", 0x20000000, ("127.0.0.1", facts["tcp"]))
attempt("MSG_FASTOPEN", talk)
""",
        bites=True,
    ),
    Hostile(
        name="multipath_tcp",
        source=r"""
import socket
def talk(kind, protocol):
    peer = socket.socket(socket.AF_INET, kind, protocol)
    peer.settimeout(1)
    peer.connect(("127.0.0.1", facts["tcp"]))
    return peer.send(b"another protocol got out")
attempt("MPTCP", talk, socket.SOCK_STREAM, 262)
attempt("SCTP", talk, socket.SOCK_STREAM, 132)
attempt("DCCP", talk, 6, 33)
""",
    ),
    Hostile(
        name="tcp6",
        source=r"""
import socket
def talk():
    peer = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    peer.settimeout(1)
    peer.connect(("::1", facts["tcp6"]))
    return peer.send(b"tcp6 got out")
attempt("tcp6", talk)
""",
    ),
    Hostile(
        name="udp",
        source=r"""
import socket
def talk():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"udp got out", ("127.0.0.1", facts["udp"]))
attempt("udp", talk)
""",
        bites=True,
    ),
    Hostile(
        name="unix_socket_by_path",
        source=r"""
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    peer = None
    try:
        peer = socket.socket(socket.AF_UNIX, kind)
        peer.connect(facts["unix"])
        escaped("unix socket by path")
        peer.send(b"unix got out")
    except OSError as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="abstract_unix_socket",
        source=r"""
import socket
def talk():
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect("\0" + facts["abstract"])
    return peer.send(b"abstract got out")
attempt("abstract", talk)
def listen():
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.bind("\0" + facts["abstract"] + "-of-a-program")
    own.listen()
attempt("abstract listener", listen)
""",
        bites=True,
    ),
    Hostile(
        name="socket_pair_sent_elsewhere",
        source=r"""
import socket
# a socket pair may be allowed; it must not be a way to a named socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        one, two = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        print(error)
        continue
    for address in (facts["unix"], "\0" + facts["abstract"], facts["unix"] + ".dgram"):
        attempt(f"connect a pair to {address!r}", one.connect, address)
        if kind == socket.SOCK_DGRAM:
            attempt(f"sendto {address!r}", one.sendto, b"pair got out", address)
            attempt(f"sendmsg {address!r}", one.sendmsg, [b"pair got out"], [], 0, address)
    try:
        one.bind("\0pair-of-a-program")
        escaped("bound a pair")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="listen",
        source=r"""
import socket
def listen(family, host):
    own = socket.socket(family, socket.SOCK_STREAM)
    own.bind((host, 0))
    own.listen()
    return own.getsockname()
attempt("listen", listen, socket.AF_INET, "0.0.0.0")
attempt("listen6", listen, socket.AF_INET6, "::")
""",
        bites=True,
    ),
    Hostile(
        name="names_and_pages",
        source=r"""
import socket, urllib.request
print(socket.gethostname())
try:
    found = socket.getaddrinfo("example.com", 80)
    escaped(f"DNS: {found[:1]}")
except OSError as error:
    print(error)
attempt("http", urllib.request.urlopen, f"http://127.0.0.1:{facts['tcp']}/", timeout=1)
""",
    ),
    Hostile(
        name="raw_and_odd_families",
        source=r"""
import socket
odd = [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_DGRAM, 1)]
odd += [(socket.AF_PACKET, socket.SOCK_RAW, 768), (socket.AF_PACKET, socket.SOCK_DGRAM, 768)]
odd += [(socket.AF_NETLINK, socket.SOCK_RAW, n) for n in (0, 4, 9, 12, 15, 16)]
odd += [(38, socket.SOCK_SEQPACKET, 0), (40, socket.SOCK_STREAM, 0), (31, socket.SOCK_RAW, 1), (29, socket.SOCK_RAW, 1),
        (44, socket.SOCK_RAW, 0), (17, 10, 0), (30, socket.SOCK_STREAM, 0), (41, socket.SOCK_DGRAM, 0),
        (21, 5, 0), (16, 3, 10), (43, 1, 0), (15, 3, 2), (24, 1, 0)]
for family, kind, protocol in odd:
    attempt(f"family {family} kind {kind} protocol {protocol}", socket.socket, family, kind, protocol)
""",
    ),
    Hostile(
        name="asynchronous_connection",
        source=r"""
import asyncio
async def talk():
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", facts["tcp"]), 1)
    writer.write(b"asyncio got out")
    await writer.drain()
    return "connected"
attempt("asyncio", lambda: asyncio.run(talk()))
""",
        bites=True,
    ),
    Hostile(
        name="sockets_by_number",
        source=r"""
import platform
socket_call, connect_call = (41, 42) if platform.machine() == "x86_64" else (198, 203)
address = (2).to_bytes(2, "little") + facts["tcp"].to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
for flags in (0, 0x40000000):
    fd = libc.syscall(ctypes.c_long(socket_call | flags), ctypes.c_long(2), ctypes.c_long(1), ctypes.c_long(0))
    call = ctypes.c_long(connect_call | flags)
    if fd >= 0 and libc.syscall(call, ctypes.c_long(fd), address, ctypes.c_long(16)) == 0:
        escaped("connected by number")
        os.write(fd, b"by number got out")
""",
        bites=True,
    ),
    Hostile(
        name="connect_in_a_function",
        source=r"""
import socket
def attack(facts):
    try:
        with socket.create_connection(("127.0.0.1", facts["tcp"]), timeout=1) as peer:
            peer.sendall(b"function got out")
        return "ESCAPED"
    except OSError as error:
        return str(error)
""",
        function="attack",
        bites=True,
    ),
)
