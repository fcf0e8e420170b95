"""GET /api/about: what this studio is, and what can be chosen in it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from flare import __version__
from flare.config.toml import shown_default
from flare.scheduling.registry import POLICIES, Policy
from flare.studio.answers import answer
from flare.studio.settings import Studio
from flare.wireless.cell import CELLS


def router(studio: Studio) -> APIRouter:
    """The route of this file."""
    routes = APIRouter(tags=["about"])

    @routes.get("/api/about", summary="What can be chosen: policies, cells, limits")
    def about() -> Response:
        return answer(
            {
                "version": __version__,
                "folder": "" if studio.service else str(studio.folder),
                "policies": [_policy(one) for one in POLICIES.values()],
                "cells": list(CELLS),
                "limits": asdict(studio.limits),
            }
        )

    return routes


def _policy(one: Policy) -> dict[str, Any]:
    """A policy, its options, and whether one round alone tells it enough."""
    alone = "labels" not in one.needed({}) and not one.probes({})
    options = [
        {"name": option.name, "default": shown_default(option), "doc": option.doc, "must_be": option.in_words()}
        for option in one.options.values()
    ]
    return {"name": one.name, "summary": one.summary, "alone": alone, "draws": one.draws, "options": options}
