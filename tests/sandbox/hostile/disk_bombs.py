"""Programs that fill the disk, or make their scratch directory hard to clean."""

from paceline.sandbox.programs import Limits
from tests.sandbox.corpus import Hostile

WITH_BIG_FILES = Limits(seconds=2.0, memory_mb=128)
"""Files may be sixteen times as big as the output."""

PROGRAMS = (
    Hostile(
        name="big_file",
        source=r"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = 0
try:
    with open("big", "wb", buffering=0) as file:
        for _ in range(256):
            written += file.write(bytes(1 << 20))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in one file")
""",
    ),
    Hostile(
        name="big_file_without_handler",
        source="with open('big', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))\n",
        bare=True,
        ends=("output_limit", "runtime_error", "memory"),
    ),
    Hostile(
        name="many_small_files",
        source=r"""
made = 0
try:
    for number in range(100_000):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(error)
if made > 50_000:
    escaped(f"{made} files")
""",
    ),
    Hostile(
        name="many_middling_files",
        source=r"""
written = 0
try:
    for number in range(1000):
        with open(f"f{number}", "wb") as file:
            written += file.write(bytes(500_000))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in many files")
""",
    ),
    Hostile(
        name="deleted_open_files",
        source=r"""
held, written = [], 0
try:
    for number in range(1000):
        fd = os.open("gone", os.O_CREAT | os.O_RDWR)
        os.unlink("gone")
        held.append(fd)
        while os.fstat(fd).st_size < 15 << 20:
            written += os.write(fd, bytes(1 << 20))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in files without a name")
""",
        limits=WITH_BIG_FILES,
    ),
    Hostile(
        name="files_without_a_name",
        source=r"""
held, written = [], 0
try:
    for number in range(1000):
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
        held.append(fd)
        while os.fstat(fd).st_size < 15 << 20:
            written += os.write(fd, bytes(1 << 20))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in O_TMPFILE")
""",
        limits=WITH_BIG_FILES,
    ),
    Hostile(
        name="files_mapped_and_deleted",
        source=r"""
import mmap
held, written = [], 0
try:
    for number in range(60):
        fd = os.open("gone", os.O_CREAT | os.O_RDWR)
        while os.fstat(fd).st_size < 15 << 20:
            written += os.write(fd, bytes(1 << 20))
        libc.mmap.restype = ctypes.c_void_p
        held.append(libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0)))
        os.unlink("gone")
        os.close(fd)
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in files of which a page is mapped")
""",
        limits=WITH_BIG_FILES,
    ),
    Hostile(
        name="files_held_when_the_first_thread_is_gone",
        source=r"""
import platform, threading
def work():
    time.sleep(0.1)
    held, written = [], 0
    try:
        for number in range(40):
            held.append(os.open("gone", os.O_CREAT | os.O_RDWR))
            os.unlink("gone")
            while os.fstat(held[-1]).st_size < 12 << 20:
                written += os.write(held[-1], bytes(1 << 20))
    except OSError as error:
        print(error)
    if written > 200 << 20:
        escaped(f"{written >> 20} MiB in files of a process whose first thread is gone")
    os._exit(0)
threading.Thread(target=work).start()
libc.syscall(60 if platform.machine() == "x86_64" else 93, 0)
""",
        limits=WITH_BIG_FILES,
    ),
    Hostile(
        name="files_where_a_watcher_cannot_look",
        source=r"""
written = 0
try:
    os.mkdir("dark", 0o300)
    for number in range(1000):
        with open(f"dark/f{number}", "wb") as file:
            written += file.write(bytes(500_000))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB in a directory that cannot be listed")
""",
    ),
    Hostile(
        name="files_below_the_longest_path",
        source=r"""
written = 0
try:
    for _ in range(20):
        os.mkdir("n" * 250)
        os.chdir("n" * 250)
    for number in range(1000):
        with open(f"f{number}", "wb") as file:
            written += file.write(bytes(500_000))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB below a path that is too long to be named")
""",
    ),
    Hostile(
        name="files_that_come_and_go",
        source=r"""
# a count of files that stumbles over one that has just gone would see none of the others
import threading
def come_and_go():
    number = 0
    while True:
        number += 1
        os.close(os.open(f"{number % 100}", os.O_CREAT | os.O_WRONLY))
        os.unlink(f"{number % 100}")
for _ in range(2):
    threading.Thread(target=come_and_go, daemon=True).start()
written = 0
try:
    for number in range(1000):
        with open(f"f{number}", "wb") as file:
            written += file.write(bytes(500_000))
except OSError as error:
    print(error)
if written > 200 << 20:
    escaped(f"{written >> 20} MiB beside files that come and go")
os._exit(0)
""",
    ),
    Hostile(
        name="deep_tree",
        source=r"""
try:
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
except OSError as error:
    print(error)
open("leaf", "w").close()
""",
    ),
    Hostile(
        name="deep_tree_of_long_names",
        source=r"""
name = "n" * 255
try:
    for _ in range(400):
        os.mkdir(name)
        os.symlink(facts["shared"], "s" * 255)
        os.chdir(name)
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="sparse_file",
        source=r"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for size in (1 << 44, 1 << 34, 1 << 28):
    try:
        with open("sparse", "wb") as file:
            file.truncate(size)
        escaped(f"a sparse file of {size}")
    except OSError as error:
        print(error)
try:
    fd = os.open("fallocated", os.O_CREAT | os.O_RDWR)
    syscall("fallocate", fd, 0, 0, 1 << 30)
    escaped("1 GiB by fallocate")
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="unreadable_directories",
        source=r"""
for number in range(5):
    os.makedirs(f"a{number}/b/c", exist_ok=True)
    open(f"a{number}/b/c/file", "w").write("x")
    for path in (f"a{number}/b/c", f"a{number}/b", f"a{number}"):
        try:
            os.chmod(path, 0)
        except OSError as error:
            print(error)
os.chmod(".", 0)
""",
    ),
    Hostile(
        name="names_that_no_text_holds",
        source=r"""
for name in (b"\xff\xfe\x80", b"new\nline", b"-rf", b"\x1b[2J", b"~", b"*", b"\xed\xb2\x80", b" "):
    try:
        os.mkdir(name)
        os.close(os.open(name + b"/" + name, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="fifo_that_blocks_a_reader",
        source=r"""
import socket
for name in ("fifo", "stdout", "stdin", "value.json", "result"):
    try:
        os.mkfifo(name)
    except OSError as error:
        print(error)
try:
    socket.socket(socket.AF_UNIX).bind("socket")
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="symlinks_for_the_cleaner",
        source=r"""
for name, target in (("s", facts["shared"]), ("dir", "/"), ("home", "/root"), ("loop", "loop"), ("up", "..")):
    try:
        os.symlink(target, name)
        os.mkdir("d" + name)
        os.symlink(target, f"d{name}/{name}")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="directory_and_symlink_in_turns",
        source=r"""
# a cleaner that looks first and follows later would delete the host's directory
import threading
def swap():
    os.makedirs("real/inner", exist_ok=True)
    os.symlink(facts["shared"], "link")
    while True:
        try:
            os.rename("real", "spare")
            os.rename("link", "real")
            os.rename("real", "link")
            os.rename("spare", "real")
        except OSError:
            pass
threading.Thread(target=swap, daemon=True).start()
time.sleep(0.2)
os.kill(os.getpid(), 9)
""",
        # whoever counts names while one becomes the other may count those behind the link: too many, so it ends there
        ends=("runtime_error", "timeout", "output_limit"),
    ),
    Hostile(
        name="scratch_renamed_and_replaced",
        source=r"""
here = os.getcwd()
for attack in (
    lambda: os.rename(here, here + ".old"),
    lambda: os.symlink(facts["shared"], here),
    lambda: os.rmdir(here),
    lambda: os.rename(here, facts["shared"] + "/moved"),
    lambda: os.mkdir(here + "-next"),
    lambda: os.symlink(facts["shared"], here + "-next2"),
    lambda: os.open("..", os.O_RDONLY) and os.mkdir("../sibling"),
):
    try:
        attack()
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="hard_links_without_end",
        source=r"""
open("one", "w").write("x")
try:
    for number in range(60000):
        os.link("one", f"l{number}")
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="attributes_and_locks_on_scratch",
        source=r"""
import fcntl
fd = os.open(".", os.O_RDONLY)
for attack in (
    lambda: os.setxattr(".", b"user.x", bytes(4096)),
    lambda: fcntl.ioctl(fd, 0x40086602, (0x10).to_bytes(8, "little")),
    lambda: fcntl.flock(fd, fcntl.LOCK_EX),
    lambda: fcntl.fcntl(fd, 1026, 15),
    lambda: os.utime(".", (0, 0)),
    lambda: fcntl.fcntl(fd, 1024, 0),
):
    try:
        attack()
    except OSError as error:
        print(error)
""",
    ),
)
