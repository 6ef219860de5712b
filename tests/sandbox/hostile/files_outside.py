"""Programs that write outside their scratch directory."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="write_outside",
        source=r"""
for path in (facts["shared"], facts["shared"] + "/inner"):
    name = path + "/" + facts["mark"]
    attempt(f"create {name}", open, name, "w")
    attempt(f"mkdir {name}", os.mkdir, name + "-dir")
    attempt(f"O_TMPFILE {path}", os.open, path, os.O_TMPFILE | os.O_RDWR, 0o600)
    attempt(f"fifo {name}", os.mkfifo, name + "-fifo")
    attempt(f"symlink {name}", os.symlink, "/", name + "-link")
# some of these may be the sandbox's own: whether the host has them afterwards is looked at from outside
for path in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/", "/home", "/root", "/etc", "/usr", "/opt", ".."):
    for way in (lambda name: open(name, "w"), lambda name: os.mkdir(name + "-dir")):
        try:
            way(path + "/" + facts["mark"])
        except OSError as error:
            print(error)
""",
    ),
    Hostile(
        name="change_a_file_of_the_host",
        source=r"""
victim = facts["victim"]
attempt("open", open, victim, "r+")
attempt("append", open, victim, "a")
attempt("truncate", os.truncate, victim, 0)
attempt("chmod", os.chmod, victim, 0)
attempt("chown", os.chown, victim, os.getuid(), os.getgid())
attempt("utime", os.utime, victim, (0, 0))
attempt("setxattr", os.setxattr, victim, b"user.x", b"1")
attempt("removexattr", os.removexattr, victim, b"user.kept")
attempt("rename", os.rename, victim, victim + ".moved")
attempt("replace", os.replace, victim, "here")
attempt("link", os.link, victim, "linked")
attempt("link beside", os.link, victim, victim + ".linked")
attempt("unlink", os.unlink, victim)
attempt("rmdir", os.rmdir, facts["shared"] + "/inner")
attempt("chmod directory", os.chmod, facts["shared"], 0)
attempt("utime directory", os.utime, facts["shared"], (0, 0))
""",
        bites=True,
    ),
    Hostile(
        name="write_through_a_symlink",
        source=r"""
os.symlink(facts["victim"], "link")
os.symlink(facts["shared"], "dir")
attempt("open the link", open, "link", "a")
attempt("create below the link", open, "dir/created", "w")
attempt("chmod the link", os.chmod, "link", 0)
attempt("utime the link", os.utime, "link", (0, 0))
attempt("rename below", os.rename, "link", "dir/moved")
if libc.renameat2(-100, b"link", -100, facts["victim"].encode(), 2) == 0:
    escaped("exchanged a file with one of the host")
""",
        bites=True,
    ),
    Hostile(
        name="lock_a_file_of_the_host",
        source=r"""
import fcntl
for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH):
    try:
        fd = os.open(facts["victim"], flags)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        escaped("locked a file of the host")
    except OSError as error:
        print(error)
""",
        # not `bites`: the program above, beside it without isolation, may have put a link in the file's place
    ),
    Hostile(
        name="mount_and_root",
        source=r"""
os.makedirs("m", exist_ok=True)
attempt("mount tmpfs", syscall, "mount", b"x", b"m", b"tmpfs", 0, 0)
attempt("bind /", syscall, "mount", b"/", b"m", 0, 4096, 0)
attempt("mount proc", syscall, "mount", b"proc", b"m", b"proc", 0, 0)
attempt("remount /", syscall, "mount", 0, b"/", 0, 32 | 4096, 0)
attempt("remount /usr", syscall, "mount", 0, b"/usr", 0, 32 | 4096, 0)
attempt("umount /", syscall, "umount2", b"/", 2)
attempt("umount scratch", syscall, "umount2", os.getcwd().encode(), 2)
attempt("chroot", os.chroot, "m")
attempt("pivot_root", syscall, "pivot_root", b".", b"m")
attempt("fsopen", syscall, "fsopen", b"tmpfs", 0)
attempt("open_tree", syscall, "open_tree", -100, b"/", 1)
attempt("mount_setattr", syscall, "mount_setattr", -100, b"/", 0, (ctypes.c_uint64 * 4)(0, 1), 32)
""",
    ),
    Hostile(
        name="device_nodes",
        source=r"""
import stat
for number, (major, minor) in enumerate(((1, 1), (1, 3), (1, 11), (254, 0), (8, 0), (10, 232))):
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        attempt(f"mknod {major} {minor}", os.mknod, f"node{number}{kind}", 0o666 | kind, os.makedev(major, minor))
""",
    ),
    Hostile(
        name="set_user_id_file",
        source=r"""
open("tool", "w").write("#!/bin/sh\necho ESCAPED\n")
try:
    os.chmod("tool", 0o6777)
    os.chown("tool", 0, 0)
    if os.stat("tool").st_mode & 0o6000 and os.stat("tool").st_uid == 0:
        escaped("a set-user-id file of root")
except OSError as error:
    print(error)
attempt("execute it", os.execv, os.path.abspath("tool"), ["tool"])
""",
    ),
    Hostile(
        name="kernel_settings",
        source=r"""
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
             "/proc/sysrq-trigger", "/proc/self/oom_score_adj", "/proc/self/uid_map", "/proc/self/setgroups",
             "/proc/self/comm", "/proc/self/coredump_filter", "/proc/self/attr/current", "/proc/self/loginuid",
             "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
             "/sys/fs/cgroup/pids/cgroup.procs", "/sys/fs/cgroup/memory/release_agent",
             f"/proc/{os.getppid()}/oom_score_adj", f"/proc/{os.getppid()}/mem"):
    attempt(path, os.open, path, os.O_WRONLY)
attempt("cgroup", os.mkdir, "/sys/fs/cgroup/paceline-escape")
""",
    ),
    Hostile(
        name="inherited_directories",
        source=r"""
for fd in range(3, 1024):
    try:
        os.fstat(fd)
    except OSError:
        continue
    for way, what in (
        (lambda: os.open("../" * 30 + facts["shared"][1:] + "/by-fd", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "create"),
        (lambda: os.open("planted", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "create here"),
        (lambda: os.fchmod(fd, 0o777), "fchmod"),
        (lambda: os.utime(fd, (0, 0)), "utime"),
        (lambda: os.ftruncate(fd, 0), "ftruncate"),
        (lambda: os.fchown(fd, os.getuid(), -1), "fchown"),
    ):
        try:
            way()
            os.write(2, f"{what} worked on {fd}\n".encode())
        except OSError:
            pass
""",
    ),
)
