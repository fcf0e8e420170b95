"""The studio asked without a network: requests go straight into the application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from flare.studio.app import create_app
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
