"""The studio as an application: its pages, and what they and other programs ask it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from flare import __version__
from flare.studio import about_api, schedule_api
from flare.studio.answers import add_error_answers
from flare.studio.guard import Guard
from flare.studio.settings import Studio

STATIC = Path(__file__).parent / "static"
_HEAD = "  <!-- head.html -->\n"  # where they stand
SERVICE = (about_api, schedule_api)
"""What `flare serve` offers: each has a `router(studio)`."""
SCREENS = ("cell_api", "new_run_api", "runs_api")
"""What the studio's pages ask beside it: imported with them, since the service does without PyTorch and figures."""


def create_app(studio: Studio) -> FastAPI:
    """The application of a studio, or of the service alone."""
    app = FastAPI(
        title="FLARE",
        version=__version__,
        description="Who sends this round, on how much bandwidth, and how far that is from the best possible.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages fetch their scripts from other hosts
        redoc_url=None,
    )
    screens = () if studio.service else (import_module(f"flare.studio.{name}") for name in SCREENS)
    for module in (*SERVICE, *screens):
        app.include_router(module.router(studio))
    _add_pages(app, "service.html" if studio.service else "index.html")
    add_error_answers(app)
    app.add_middleware(Guard, studio=studio)
    return app


def page(name: str) -> str:
    """A page with the lines that all of them have in their head."""
    return (STATIC / name).read_text("utf-8").replace(_HEAD, (STATIC / "head.html").read_text("utf-8"))


def _add_pages(app: FastAPI, first: str) -> None:
    pages = {name: page(name) for name in (first, "service.html")}

    async def home() -> Response:
        return HTMLResponse(pages[first])

    async def service() -> Response:
        return HTMLResponse(pages["service.html"])

    app.add_api_route("/", home, include_in_schema=False)
    app.add_api_route("/docs", service, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC, follow_symlink=False), name="static")
