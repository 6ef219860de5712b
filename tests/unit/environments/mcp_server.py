"""A server for the tests, in memory or as a program: it counts, and does what servers do wrong."""

import os
import sys
import threading

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError


def made() -> MCPServer:
    server, state = MCPServer("counter"), {"n": 0}

    @server.tool()
    def count(step: int = 1) -> int:
        """Count on."""
        state["n"] += step
        return state["n"]

    @server.tool()
    def seed(prefix: str) -> str:
        """Say the episode's seed."""
        return f"{prefix}{os.environ.get('PACELINE_SEED')}"

    @server.tool()
    def record() -> dict[str, object]:
        """Return data."""
        return {"é": [0.1, None]}

    @server.tool()
    def refuse() -> str:
        """Say that it went wrong."""
        raise ToolError("the shop is closed")

    @server.tool()
    def picture() -> Image:
        """Return an image."""
        return Image(data=b"\x89PNG", format="png")

    @server.tool()
    def leave() -> str:
        """End the server."""
        print("out of order", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool()
    def sell(file: str) -> str:
        """Sell, and end the server before it says so."""
        with open(file, "a") as sold:
            sold.write("sold\n")
        os._exit(3)

    @server.tool()
    async def wait() -> str:
        """Wait for ever, deaf to all that comes."""
        print("waiting", file=sys.stderr, flush=True)
        threading.Event().wait()
        return ""

    return server


if __name__ == "__main__":
    made().run()
