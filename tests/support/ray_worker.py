"""Started by Ray for each of its workers: has the server of `tests.support.ray_server` fork it, and ends with it."""

import json
import os
import select
import socket
import sys

# nothing else is imported: a cluster starts one for each core


def main() -> int:
    """Status of the worker."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["PACELINE_TEST_RAY_SERVER"])
        request = json.dumps({"words": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [len(request).to_bytes(4, "little")], [0, 1, 2])
        server.sendall(request)
        while not select.select([server], [], [], 0.2)[0]:
            if os.getppid() != parent:  # the node is gone; the server kills the worker when this process is
                return 1
        status = server.recv(1)
        return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
