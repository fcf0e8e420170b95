"""How the studio answers: JSON as quick as it can be made, and errors that name the field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from flare.text import one_line

NO_RUN = "there is no such run in the studio's folder"


class FieldError(ValueError):
    """What is wrong with one field of a request, as `devices[3].tau`; "" where it is the request as a whole."""

    def __init__(self, field: str, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON; null stands for what is nan or infinite."""
    try:
        body = to_json(value, inf_nan_mode="null")  # several times as quick as json.dumps
    except PydanticSerializationError:  # half of a character, in a name of a file, say
        body = json.dumps(value).encode()
    return Response(body, status, media_type="application/json")


def refusal(status: int, message: str, field: str = "") -> Response:
    """An error as every client of the studio gets it."""
    return answer({"error": {"field": field, "message": one_line(message)}}, status)


def path_of(location: Sequence[int | str]) -> str:
    """Where in a request something is, such as `devices[3].tau`."""
    text = ""
    for one in location:
        text += f"[{one}]" if isinstance(one, int) else f".{one}" if text else str(one)
    return text


def add_error_answers(app: FastAPI) -> None:
    """Have the application answer every error as `refusal` does."""

    async def of_field(_request: Request, error: Exception) -> Response:
        assert isinstance(error, FieldError)
        return refusal(error.status, str(error), error.field)

    async def of_value(_request: Request, error: Exception) -> Response:
        return refusal(422, str(error))

    async def of_request(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = first["loc"][1:] if len(first["loc"]) > 1 else first["loc"]
        return refusal(422, first["msg"], path_of(where))

    async def of_http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal(error.status_code, str(error.detail))

    async def of_gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=400)  # to nobody: the client has left in the middle of its request

    async def of_fault(_request: Request, error: Exception) -> Response:
        return refusal(500, f"a fault of flare: {type(error).__name__}; please report it")

    app.add_exception_handler(FieldError, of_field)
    app.add_exception_handler(ValueError, of_value)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(ClientDisconnect, of_gone)
    app.add_exception_handler(Exception, of_fault)
