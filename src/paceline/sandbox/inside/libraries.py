"""Directories that a Python program needs: the interpreter's own libraries and the shared ones of the system."""

import glob
import os
import sys

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib64", "/lib32")
SINGLE = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/nix/store", "/gnu/store")
PACKAGES = ("site-packages", "dist-packages")
DEVICES = ("null", "zero", "random", "urandom")


def readable() -> list[str]:
    """Return the absolute paths a program may read, outermost first; the interpreter's under the name that it knows."""
    own = [os.path.dirname(os.path.dirname(path)) for path in sys.path if path.endswith("lib-dynload")]
    own.append(os.path.dirname(os.path.dirname(os.__file__)))
    paths = {*SYSTEM, *SINGLE, *own, *(os.path.realpath(path) for path in own)}
    return sorted(path for path in paths if os.path.exists(path))


def hidden() -> list[str]:
    """Return directories of installed packages below those: a program's abilities must not depend on them."""
    patterns = (f"{path}/python3*/{name}" for path in readable() for name in PACKAGES)
    return sorted({os.path.realpath(found) for pattern in patterns for found in glob.glob(pattern)})
