"""A way out of this machine that leads nowhere: what programs of a test try to reach is refused, and remembered."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_HERE = "127.0.0.1,localhost"


@dataclass
class WayOut:
    """A proxy on this machine that refuses every request.

    Programs that are started with `env` send through it whatever is not for this machine, as they do in a network with
    a proxy: Python's urllib, requests and httpx, gRPC and uv all go by these variables.
    """

    address: str
    asked: list[str] = field(default_factory=list)  # host:port of each request

    @property
    def env(self) -> dict[str, str]:
        """Variables for the environment of the programs."""
        ways = {f"{kind}_proxy": f"http://{self.address}" for kind in ("http", "https", "all")} | {"no_proxy": _HERE}
        return ways | {name.upper(): value for name, value in ways.items()}

    @property
    def hosts(self) -> set[str]:
        """Who was to be reached."""
        return {each.rpartition(":")[0] for each in self.asked}


@contextmanager
def way_out() -> Iterator[WayOut]:
    """A proxy that lives as long as the block."""

    class Refuse(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            words = self.rfile.readline(4096).decode("ascii", errors="replace").split()  # CONNECT host:port HTTP/1.1
            if len(words) == 3:
                made.asked.append(words[1] if words[0] == "CONNECT" else _host(words[1]))
            while self.rfile.readline(4096).strip():
                pass
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A program that ended meanwhile is nobody's fault."""

    with Server(("127.0.0.1", 0), Refuse) as server:
        made = WayOut(f"127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            server.shutdown()


def _host(url: str) -> str:
    """`host:port` of a request that gives the whole address."""
    place = url.partition("://")[2].partition("/")[0]
    return place if ":" in place else f"{place}:80"
