"""Serving the studio: a free port, a browser, and an end without fuss."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from flare.studio.app import create_app
from flare.studio.requests import parsed
from flare.studio.schedule_api import EXAMPLE, ROUND, scheduled
from flare.studio.settings import DEFAULT_PORT, Limits, Studio

MAX_PORTS_TRIED = 50
MAX_CONNECTIONS = 512
BACKLOG = 512
END_WITHIN_S = 2
_TOLD = "FLARE_STUDIO"  # the variable in which worker processes find what they serve
_ANYWHERE = ("0.0.0.0", "::")


def bound_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens at an address: at the given port, or at the first free one from `DEFAULT_PORT` on.
    ValueError where that cannot be."""
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + MAX_PORTS_TRIED), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # there it means a port whose last user has gone, elsewhere also one in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(BACKLOG)  # from here on the port is taken
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE and number != ports[-1]:
                continue
            raise ValueError(
                f"port {number} of {host} cannot be used ({error.strerror}); give another --port"
            ) from None
        return listening
    raise AssertionError("the last port is tried or refused")


def address_of(studio: Studio) -> str:
    """Where a browser of this machine finds the studio; the token goes behind the #, which no server is sent."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(studio.host, studio.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    secret = "" if studio.token is None else f"#token={studio.token}"
    return f"http://{host}:{studio.port}/{secret}"


_COMMON: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "ws": "none",
    "limit_concurrency": MAX_CONNECTIONS,
    "timeout_graceful_shutdown": END_WITHIN_S,
}


def server_of(studio: Studio) -> uvicorn.Server:
    """A server of the studio in this process; its `run` takes the sockets, and ends when `should_exit` is set."""
    return uvicorn.Server(uvicorn.Config(create_app(studio), **_COMMON))


def serve(studio: Studio, listening: socket.socket, *, ready: Callable[[], None], workers: int = 1) -> None:
    """Serve until the user ends it (Ctrl-C); `ready` is called as soon as it answers."""
    if workers == 1:
        warm_up(studio)
        server = server_of(studio)
        threading.Thread(target=_when_started, args=(server, ready), daemon=True).start()
        server.run(sockets=[listening])
        return
    os.environ[_TOLD] = json.dumps(asdict(studio) | {"folder": str(studio.folder)})
    config = uvicorn.Config("flare.studio.serving:worker_app", factory=True, workers=workers, **_COMMON)
    threading.Thread(target=_when_answering, args=(studio, ready), daemon=True).start()
    Multiprocess(config, target=uvicorn.Server(config).run, sockets=[listening]).run()


def worker_app() -> ASGIApp:
    """The application of a worker process, which is told what to serve by its environment."""
    told = json.loads(os.environ[_TOLD])
    studio = Studio(**told | {"folder": Path(told["folder"]), "limits": Limits(**told["limits"])})
    warm_up(studio)
    return create_app(studio)


def warm_up(studio: Studio) -> None:
    """Schedule a small round, so that the first user does not wait for what is imported and prepared on first use."""
    scheduled(parsed(ROUND, json.dumps(EXAMPLE).encode()), studio.limits)


def open_browser(address: str) -> None:
    """Show the studio; where there is no browser, the address that was printed has to do."""
    webbrowser.open(address)


def _when_started(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.01)
    ready()


def _when_answering(studio: Studio, ready: Callable[[], None]) -> None:
    host = "127.0.0.1" if studio.host in _ANYWHERE else studio.host
    for _ in range(1000):
        try:
            with socket.create_connection((host, studio.port), timeout=1.0) as asking:
                asking.sendall(b"GET /static/css/base.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if asking.recv(1):
                    ready()
                    return
        except OSError:
            pass
        time.sleep(0.05)
