"""The studio asked without a network: requests go straight into the application. And served, for those who need it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from flare.studio.app import create_app
from flare.studio.serving import bound_socket, server_of
from flare.studio.settings import Studio


class Client:
    """Asks one studio; `host` is the name that it is asked by."""

    def __init__(self, studio: Studio, host: str = "localhost:8765") -> None:
        self._loop = asyncio.new_event_loop()
        inside = httpx.ASGITransport(app=create_app(studio), raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=inside, base_url=f"http://{host}")

    def ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.request(method, path, **how))

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.ask("GET", path, **how)

    def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        return self.ask("POST", path, json=body, **how)

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Studio]:
    """A studio behind a real socket of this machine, in a thread."""
    listening = bound_socket("127.0.0.1", 0)
    studio = Studio(folder, port=listening.getsockname()[1], **settings)
    server = server_of(studio)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server has ended before it began"
        time.sleep(0.01)
    try:
        yield studio
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@contextmanager
def client_of(studio: Studio, host: str = "localhost:8765") -> Iterator[Client]:
    asking = Client(studio, host)
    try:
        yield asking
    finally:
        asking.close()


def refused(answer: httpx.Response, status: int, field: str | None = None) -> str:
    """The message of a refusal, which has this status and names this field."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    if field is not None:
        assert error["field"] == field, error
    assert error["message"]
    message: str = error["message"]
    return message
