"""The New run screen: its form, what is wrong with what was typed, the command that it equals; start, stop, resume."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from flare.config import MAX_SEEDS, Config
from flare.records.manifest import CONFIG, read_config
from flare.studio.answers import NO_RUN, FieldError, answer
from flare.studio.launching import Launcher, NotNowError, refuse_name, refuse_run
from flare.studio.run_folders import inside
from flare.studio.run_form import (
    MAX_SETTINGS,
    Checked,
    arguments,
    changed_settings,
    checked,
    file_config,
    form,
    outside,
    refuse_paths_outside,
)
from flare.studio.settings import Studio
from flare.sweeps.entries import TextEntry, name_of, of_entries
from flare.sweeps.task import COMPARISON, listed
from flare.text import one_line

MAX_ENTRIES = 50
MAX_TEXT = 200_000
ENDING_S = 15.0
"""How long a run that is resumed may still need to end."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]


class NewRun(BaseModel):
    """What was filled in: settings as they would be typed behind `--set name=`, those left alone not among them.

    entries  as behind --entry: METHOD:POLICY, with settings of its own behind commas, beside or in the place of the one
             of the settings: a comparison
    seeds    how many, from the seed of the settings on; more than one is a comparison
    name     of the folder; "": method, policy and seed
    """

    model_config = ConfigDict(extra="forbid")
    settings: dict[Annotated[str, Field(max_length=200)], Text] = Field(default_factory=dict, max_length=MAX_SETTINGS)
    entries: list[Annotated[str, Field(max_length=200)]] = Field(default_factory=list, max_length=MAX_ENTRIES)
    seeds: int = Field(1, ge=1, le=MAX_SEEDS)
    name: str = Field("", max_length=200)


class OneRun(BaseModel):
    """A run, by its folder seen from the studio's."""

    model_config = ConfigDict(extra="forbid")
    run: str = Field(max_length=1000)


class FileText(BaseModel):
    """The text of a configuration file."""

    model_config = ConfigDict(extra="forbid")
    toml: Text


def router(studio: Studio) -> APIRouter:
    """The routes of this file."""
    routes, launcher = APIRouter(tags=["new run"]), Launcher(studio.folder)
    _add_form(routes, launcher)
    _add_processes(routes, launcher)
    return routes


def _add_form(routes: APIRouter, launcher: Launcher) -> None:
    """What the form asks while it is filled in."""
    root = launcher.root

    @routes.get("/api/new-run/form", summary="Every setting of a run: its comment, default and limits")
    def whole_form() -> Response:
        return answer(form())

    @routes.post("/api/new-run/check", summary="What is wrong with settings, and the command that they equal")
    def check(asked: NewRun) -> Response:
        found = _checked(asked, launcher)
        words, run = _words(asked, found.config, launcher)
        return answer({"errors": dict(found.errors), "command": _command(words), "folder": run})

    @routes.post(
        "/api/new-run/read", summary="The settings of a configuration file in which it differs from the default"
    )
    def read(file: FileText) -> Response:
        try:
            config = file_config(file.toml, "the file", root)
        except ValueError as error:
            raise FieldError("toml", str(error)) from None
        return answer({"settings": _as_typed_here(changed_settings(config), launcher)})

    @routes.post("/api/new-run/like", summary="The settings of a run, to begin another with")
    def like(asked: OneRun) -> Response:
        try:
            config = read_config(inside(root, asked.run) / CONFIG)
        except LookupError:
            raise HTTPException(404, NO_RUN) from None
        return answer({"settings": _as_typed_here(changed_settings(config), launcher)})


def _add_processes(routes: APIRouter, launcher: Launcher) -> None:
    """Starting, stopping and resuming what was filled in, and what became of it."""

    @routes.post("/api/new-run/start", summary="Start a run, or a comparison, as a process of its own")
    def start(asked: NewRun) -> Response:
        found = _checked(asked, launcher)
        for field, message in found.errors.items():
            raise FieldError(field, message)
        words, run = _words(asked, found.config, launcher)
        return answer(_started(launcher, words, run), 201)

    @routes.post("/api/runs/stop", summary="End a run that was started here; it can be resumed")
    def stop(asked: OneRun) -> Response:
        try:
            launcher.stop(asked.run)
        except NotNowError as error:
            raise HTTPException(409, str(error)) from None
        return answer({"jobs": launcher.jobs()})

    @routes.post("/api/runs/resume", summary="Continue a run that was ended before its end")
    def resume(asked: OneRun) -> Response:
        try:
            folder = inside(launcher.root, asked.run)
        except LookupError:
            raise HTTPException(404, NO_RUN) from None
        if asked.run == ".":
            raise HTTPException(409, "the studio's folder is itself a run; start the studio in the folder above")
        launcher.let_end(asked.run, ENDING_S)
        if launcher.is_running(asked.run):
            raise HTTPException(409, f"{asked.run} is being carried out")
        several = (folder / COMPARISON).is_file()
        _refuse_outside(
            launcher.root, [f"{asked.run}/{each.name}" for each in listed(folder)] if several else [asked.run]
        )
        what = "compare" if several else "run"
        return answer(_started(launcher, [what, f"--resume={asked.run}"], asked.run), 201)

    @routes.get("/api/jobs", summary="What was started here, and what became of it")
    def jobs() -> Response:
        return answer({"jobs": launcher.jobs()})


def _refuse_outside(root: Path, runs: list[str]) -> None:
    """Status 409 where a run that is to be continued is reached through a link, or names files outside the folder:
    its plugins are executed."""
    for run in runs:
        try:
            wrong = outside(read_config(inside(root, run) / CONFIG), root)
        except LookupError:
            raise HTTPException(409, f"{run} is no folder inside the studio's; it cannot be resumed here") from None
        if wrong:
            raise HTTPException(409, f"{run} cannot be resumed here: {next(iter(wrong.values()))}")


def _checked(asked: NewRun, launcher: Launcher) -> Checked:
    """What was filled in, all of it checked; what is wrong, by field."""
    found = checked(asked.settings, launcher.root)
    errors = dict(found.errors)
    try:
        refuse_run(launcher.root)
        if asked.name:
            refuse_name(launcher.root, asked.name)
    except ValueError as error:
        errors["name"] = one_line(str(error))
    if asked.entries and found.config is not None:
        try:
            entries = [TextEntry.read(entry) for entry in asked.entries]
            refuse_paths_outside([each for entry in entries for each in entry.settings], launcher.root)
            if not found.config.plugins:  # what plugins register, only the run itself knows
                of_entries(found.config, entries)
        except ValueError as error:
            errors["entries"] = one_line(str(error))
    return Checked(None if errors else found.config, errors)


def _words(asked: NewRun, config: Config | None, launcher: Launcher) -> tuple[list[str], str]:
    """What follows `flare` on the command line, and the folder of the run."""
    several = bool(asked.entries) or asked.seeds > 1
    usual = "compare" if several else name_of(config) if config is not None else "run"
    run = asked.name or launcher.free_name(usual)
    return arguments(asked.settings, asked.entries, asked.seeds, run), run


def _as_typed_here(settings: dict[str, str], launcher: Launcher) -> dict[str, str]:
    """Settings with the paths below the studio's folder as seen from there."""
    return {name: text.replace(f"{launcher.root}/", "") for name, text in settings.items()}


def _started(launcher: Launcher, words: list[str], run: str) -> dict[str, Any]:
    try:
        job = launcher.start(words, run)
    except NotNowError as error:
        raise HTTPException(409, str(error)) from None
    return {"run": job.run, "job": job.id, "command": _command(words)}


def _command(words: list[str]) -> str:
    """The command as it can be pasted into a shell, in the studio's folder."""
    return shlex.join(["flare", *words])
