"""What the Cell screen asks: POST /api/cell solves what it shows, POST /api/cell/load reads a file of the user."""

from __future__ import annotations

import io
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field, TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from flare.config import Config, WirelessConfig
from flare.scheduling import POLICIES
from flare.scheduling.explain import explain
from flare.scheduling.remedies import remedies
from flare.scheduling.table import DeviceTable, Surroundings, read_table
from flare.studio.answers import FieldError, answer
from flare.studio.requests import parsed
from flare.studio.run_form import file_config
from flare.studio.scene import Scene, cell_config, known_round, positions
from flare.studio.schedule_api import best_answer, checked_policy
from flare.studio.settings import Studio
from flare.studio.view import View, view_of
from flare.studio.working import Worker
from flare.wireless.channel import path_gain


class File(TypedDict):
    """A file of the user, as text."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    name: Annotated[str, Field(min_length=1, max_length=300)]
    text: str


SCENE: TypeAdapter[Scene] = TypeAdapter(Scene)
FILE: TypeAdapter[File] = TypeAdapter(File)


def router(studio: Studio) -> APIRouter:
    """The routes of this file."""
    routes, worker = APIRouter(tags=["screens"]), Worker(studio.limits)

    @routes.post("/api/cell", include_in_schema=False)
    async def cell(request: Request) -> Response:
        body = await request.body()
        return await worker.compute(lambda: answer({"views": views_of(parsed(SCENE, body), studio)}))

    @routes.post("/api/cell/load", include_in_schema=False)
    async def load(request: Request) -> Response:
        body = await request.body()
        return await worker.compute(lambda: answer(loaded(parsed(FILE, body), studio)))

    return routes


def views_of(scene: Scene, studio: Studio) -> list[View]:
    """What each policy makes of a scene."""
    this, radius_m = known_round(scene, studio)
    seed, index = scene.get("seed", 0), scene.get("round", 0)
    focus = [scene["focus"]] if "focus" in scene else []
    found = []
    for at, asked in enumerate(scene["policies"]):
        where = f"policies[{at}]."
        policy, options = checked_policy(asked["policy"], asked.get("options", {}), studio.limits, where)
        start = time.perf_counter()
        schedule = best_answer(this, policy, options, studio.limits, seed=seed, index=index, where=where)
        took_s = time.perf_counter() - start
        detail = explain(schedule)
        found.append(
            view_of(
                schedule,
                detail,
                index=index,
                names=this.names,
                cpu_hz=this.cpu_hz,
                power_w=this.power_w,
                remedies=remedies(schedule, detail, focus),
                solve_s=took_s,
                radius_m=radius_m,
            )
        )
    return found


def loaded(file: File, studio: Studio) -> dict[str, Any]:
    """What a file of the user shows: the cell of a configuration (.toml), or the devices of a table (CSV)."""
    try:
        if file["name"].lower().endswith(".toml"):
            return _cell_of(file_config(file["text"], file["name"], studio.folder), studio)
        return _devices_of(_read(file), studio)
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError("text", str(error)) from None


def _read(file: File) -> DeviceTable:
    law = WirelessConfig()
    around = Surroundings(
        batch_size=law.batch_size,
        noise_dbm_per_mhz=law.noise_dbm_per_mhz,
        capacitance=law.capacitance,
        path_gain=lambda far_m: path_gain(far_m, law.path_loss, law.path_loss_exponent),
    )
    return read_table(io.BytesIO(file["text"].encode("utf-8", "replace")), around, file["name"])


def _cell_of(config: Config, studio: Studio) -> dict[str, Any]:
    """The cell of a configuration: its settings that are not the usual ones, and who is asked."""
    remarks = []
    usual = WirelessConfig()
    settings = {
        each.name: getattr(config.wireless, each.name)
        for each in fields(WirelessConfig)
        if getattr(config.wireless, each.name) != getattr(usual, each.name)
    }
    settings = {name: dict(each) if name == "downlink_options" else each for name, each in settings.items()}
    cell = cell_config(settings, studio)
    if cell.trace:
        settings["trace"] = Path(cell.trace).relative_to(studio.folder.resolve()).as_posix()
    gamma, policy = config.scheduling.gamma, config.scheduling.policy
    if isinstance(gamma, str):
        remarks.append(f'scheduling.gamma is "{gamma}", which is known only in a run: 10 is shown')
        gamma = 10.0
    options = dict(config.scheduling.options)
    if policy not in POLICIES:
        remarks.append(f"there is no policy '{policy}' here: exact is shown; start the studio with its --plugin")
        policy, options = "exact", {}
    asked = {"policy": policy, "options": options}
    return {
        "kind": "cell",
        "wireless": settings,
        "seed": config.seed,
        "gamma": gamma,
        "asked": asked,
        "remarks": remarks,
    }


def _devices_of(table: DeviceTable, studio: Studio) -> dict[str, Any]:
    """The devices of a table, as a scene takes them."""
    number = len(table.names)
    if number > studio.limits.max_devices:
        many = f"{table.source} has {number:,} devices; a screen shows at most {studio.limits.max_devices:,}"
        raise FieldError("text", many, 413)
    far_m, angle_rad = positions(table.snr_hz, table.distance_m, table.power_w)
    columns = {
        "tau": table.tau,
        "compute_s": table.compute_s,
        "snr_hz": table.snr_hz,
        "payload_bits": table.payload_bits,
        "weight": table.weight,
        "due_s": table.due_s,
        "cpu_hz": table.cpu_hz,
        "power_w": table.power_w,
        "x_m": far_m * np.cos(angle_rad),
        "y_m": far_m * np.sin(angle_rad),
    }
    known = {name: values.tolist() for name, values in columns.items() if values is not None}
    rows = [dict(zip(known, row, strict=True)) for row in zip(*known.values(), strict=True)]
    devices = [{"name": name, **row} for name, row in zip(table.names, rows, strict=True)]
    return {"kind": "devices", "devices": devices, "remarks": table.remarks(None)}
