"""Landlock rules of what may be read and written; any process may restrict itself with this security module.

Rights by version of its interface: include/uapi/linux/landlock.h of the kernel.
"""

import os
import struct

from paceline.sandbox.inside import kernel

READ_FILE, READ_DIR = 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
WRITE_FILE = 1 << 1
DEVICES_AND_SOCKETS = (1 << 6) | (1 << 9) | (1 << 11)  # Rights to make character devices, sockets and block devices
ALL_OF_VERSION_1 = (1 << 13) - 1
READ = READ_FILE | READ_DIR
NETWORK = 3
SCOPES = 3  # Scopes of abstract sockets and signals: only within the domain

VERSION_WITH_NETWORK, VERSION_WITH_SCOPES = 4, 6
RULE_PATH_BENEATH = 1
CREATE_RULESET_VERSION = 1


def version() -> int:
    """Return the kernel's version of the interface; raises OSError if it has none, or refuses it."""
    return kernel.call("landlock_create_ruleset", None, 0, CREATE_RULESET_VERSION)


def ruleset(readable: list[str], writable: list[str], scratch: str, listed: list[str]) -> int:
    """Return a descriptor of rules: read these, write into those, everything usual below the scratch directory.

    Below `listed`, directories may be listed: the interpreter looks for modules that way.
    """
    interface = version()
    handled = ALL_OF_VERSION_1  # and what later versions can withhold
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE)):
        handled |= right if interface >= since else 0
    wanted = struct.pack("Q", handled)
    if interface >= VERSION_WITH_NETWORK:
        wanted += struct.pack("Q", NETWORK)
    if interface >= VERSION_WITH_SCOPES:
        wanted += struct.pack("Q", SCOPES)
    rules = kernel.call("landlock_create_ruleset", wanted, len(wanted), 0)
    for path in readable:
        _allow(rules, path, READ)
    for path in writable:
        _allow(rules, path, (READ_FILE | WRITE_FILE | TRUNCATE) & handled)
    for path in listed:
        _allow(rules, path, READ_DIR)
    _allow(rules, scratch, handled & ~DEVICES_AND_SOCKETS & ~IOCTL_DEVICE)
    return rules


def readable_without(paths: list[str], hidden: list[str]) -> list[str]:
    """Return the paths, with those above a hidden one replaced by its neighbours."""
    shown: list[str] = []
    for path in map(os.path.realpath, paths):
        if path in hidden:
            continue
        if any(name.startswith(path + "/") for name in hidden):
            shown += readable_without([f"{path}/{name}" for name in sorted(os.listdir(path))], hidden)
        else:
            shown.append(path)
    return shown


def enforce(rules: int) -> None:
    """Enforce the rules on this process, which must have renounced new privileges before."""
    kernel.call("landlock_restrict_self", rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= READ_FILE | WRITE_FILE | TRUNCATE
        kernel.call("landlock_add_rule", rules, RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
