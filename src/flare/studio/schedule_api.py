"""To come."""

from __future__ import annotations

from fastapi import APIRouter

from flare.studio.settings import Studio


def router(studio: Studio) -> APIRouter:
    """The routes of this file."""
    return APIRouter()
