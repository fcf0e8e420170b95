"""The service: POST /api/schedule and /api/schedule/batch, answered with what `flare schedule --json` prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from flare.config import WirelessConfig, checked_guard
from flare.config.guard import Guard
from flare.scheduling import POLICIES, RoundProblem, Schedule
from flare.scheduling.explain import explain
from flare.scheduling.known_round import KnownRound, devices_named, known_from_table, with_bound
from flare.scheduling.table import COLUMNS, DeviceTable, Surroundings, table_of
from flare.studio.answers import FieldError, answer
from flare.studio.requests import Batch, Device, Round, parsed, schema_of
from flare.studio.settings import Limits, Studio
from flare.studio.working import Worker
from flare.wireless.channel import path_gain

ROUND: TypeAdapter[Round] = TypeAdapter(Round)
BATCH: TypeAdapter[Batch] = TypeAdapter(Batch)
_DEFAULTS = WirelessConfig()
_OF_PROBLEM = {"total_bandwidth_hz": "bandwidth_hz"}  # fields that a problem calls otherwise
EXAMPLE = {
    "devices": [
        {"name": "a", "tau": 3, "compute_s": 0.05, "snr_hz": 4e7},
        {"name": "b", "tau": 1, "compute_s": 0.02, "snr_hz": 9e6},
        {"name": "c", "tau": 6, "compute_s": 0.31, "snr_hz": 2e7},
    ],
    "bandwidth_hz": 1e7,
    "deadline_s": 0.4,
    "payload_bits": 1e6,
    "gamma": 10,
    "policy": "exact",
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "What `flare schedule --json` prints: status, objective, proven bound, and every device."},
    422: {"description": 'What is wrong and where: {"error": {"field": "devices[3].tau", "message": ...}}.'},
    503: {"description": "It takes too long."},
}


def router(studio: Studio) -> APIRouter:
    """The routes of this file."""
    routes, worker, limits = APIRouter(tags=["schedule"]), Worker(studio.limits), studio.limits

    @routes.post(
        "/api/schedule",
        summary="Who sends this round, and on how much bandwidth",
        openapi_extra=_asked_with(ROUND, EXAMPLE),
        responses=_ANSWERS,
    )
    async def schedule(request: Request) -> Response:
        body = await request.body()
        return await worker.compute(lambda: answer(scheduled(parsed(ROUND, body), limits)))

    @routes.post(
        "/api/schedule/batch",
        summary="Many rounds at once",
        openapi_extra=_asked_with(BATCH, {"rounds": [EXAMPLE]}),
        responses=_ANSWERS,
    )
    async def batch(request: Request) -> Response:
        body = await request.body()
        return await worker.compute(lambda: answer({"schedules": _all_scheduled(parsed(BATCH, body), limits)}))

    return routes


def _asked_with(adapter: TypeAdapter[Any], example: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of(adapter), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _all_scheduled(batch: Batch, limits: Limits) -> list[dict[str, Any]]:
    rounds = batch["rounds"]
    devices = sum(len(one["devices"]) for one in rounds)
    if len(rounds) > limits.max_batch:
        raise FieldError("rounds", f"there are {len(rounds):,} rounds; send at most {limits.max_batch:,} at once", 413)
    if devices > limits.max_batch_devices:
        many = f"the rounds have {devices:,} devices together"
        raise FieldError("rounds", f"{many}; send at most {limits.max_batch_devices:,} at once", 413)
    end_s, answers = time.monotonic() + limits.max_seconds, []
    for at, one in enumerate(rounds):
        if time.monotonic() > end_s:
            raise FieldError(f"rounds[{at}]", f"the rounds before this took {limits.max_seconds:g} s; send fewer", 503)
        answers.append(scheduled(one, limits, f"rounds[{at}]."))
    return answers


def scheduled(asked: Round, limits: Limits, where: str = "") -> dict[str, Any]:
    """What `flare schedule --json` prints of a round. FieldError names a field of it, which `where` goes before."""
    if len(asked["devices"]) > limits.max_devices:
        many = f"there are {len(asked['devices']):,} devices; a round may have at most {limits.max_devices:,}"
        raise FieldError(f"{where}devices", many, 413)
    this = _known(asked, where)
    policy, options = _policy(asked, limits, where)
    found = best_answer(this, policy, options, limits, seed=asked.get("seed", 0), index=asked.get("round", 0))
    return this.as_dict(found, explain(found))


def best_answer(
    this: KnownRound, policy: str, options: dict[str, Any], limits: Limits, *, seed: int, index: int, where: str = ""
) -> Schedule:
    """The schedule of a policy with a proven bound: its own, or that of `exact`, which is asked for it with the same
    `max_devices`, for that is of the round."""
    try:
        found = this.ask(policy, options, seed=seed, index=index)
    except ValueError as error:
        raise FieldError(f"{where}policy", str(error)) from None
    if policy == "exact":
        return found
    same = {"time_limit_s": limits.proof_seconds, "max_devices": options.get("max_devices")}
    return with_bound(found, this.ask("exact", same, seed=seed, index=index).lower_bound, this.problem)


def _policy(asked: Round, limits: Limits, where: str) -> tuple[str, dict[str, Any]]:
    """The policy that is asked, and its options."""
    return checked_policy(asked.get("policy", "exact"), asked.get("options", {}), limits, where)


def checked_policy(name: str, given: dict[str, Any], limits: Limits, where: str = "") -> tuple[str, dict[str, Any]]:
    """A policy and its options; FieldError where there is none of that name, or an option is none of its own. The
    search of `exact` for a proof ends early enough for the answer to be in time."""
    try:
        chosen = POLICIES.find(name)
    except ValueError as error:
        raise FieldError(f"{where}policy", str(error)) from None
    options = dict(given)
    try:
        chosen.check_options(options)
    except ValueError as error:
        raise FieldError(f"{where}options", str(error)) from None
    if "time_limit_s" in chosen.options:
        asked_s = options.setdefault("time_limit_s", limits.proof_seconds)
        if not 0.0 <= asked_s <= limits.proof_seconds:
            allowed = f"it must be from 0 to {limits.proof_seconds:g} s here"
            raise FieldError(f"{where}options.time_limit_s", f"time_limit_s is {asked_s:g}; {allowed}")
    return name, options


def _known(asked: Round, where: str) -> KnownRound:
    """The round that is asked for."""
    around = Surroundings(
        batch_size=asked.get("batch_size", _DEFAULTS.batch_size),
        noise_dbm_per_mhz=asked.get("noise_dbm_per_mhz", _DEFAULTS.noise_dbm_per_mhz),
        capacitance=_DEFAULTS.capacitance,
        path_gain=lambda distance_m: path_gain(
            distance_m,
            asked.get("path_loss", _DEFAULTS.path_loss),
            asked.get("path_loss_exponent", _DEFAULTS.path_loss_exponent),
        ),
    )
    table = _table(asked["devices"], around, where)
    if table.payload_bits is not None and "payload_bits" in asked:
        raise FieldError(f"{where}payload_bits", "the devices have payload_bits of their own; leave one of them out")
    for name, own in (("payload_bits", table.payload_bits), ("deadline_s", table.due_s)):
        if own is None and name not in asked:
            raise FieldError(f"{where}{name}", f"{name} is missing; give it, or one to each device")
    problem, guard = _problem(asked, table, where)
    return known_from_table(table, problem, _DEFAULTS.capacitance, guard)


def _problem(asked: Round, table: DeviceTable, where: str) -> tuple[RoundProblem, Guard]:
    """The problem that is asked for, and the guard that its deadlines are short of."""
    try:
        guard = Guard.of(checked_guard(asked.get("guard", 0.0), "guard"))
        problem = table.problem(
            total_bandwidth_hz=asked["bandwidth_hz"],
            gamma=asked.get("gamma", 10.0),
            payload_bits=asked.get("payload_bits"),
            deadline_s=asked.get("deadline_s"),
            guard=guard,
        )
        given: dict[str, Any] = {**asked}
        more: dict[str, Any] = {name: given[name] for name in ("max_devices", "block_hz") if name in given}
        more |= {name: _listed(given[name], table.names, name) for name in ("must", "never") if name in given}
        return replace(problem, **more) if more else problem, guard
    except ValueError as error:
        first = str(error).partition(" ")[0].rstrip(":")
        name = _OF_PROBLEM.get(first, first)
        raise FieldError(f"{where}{name}" if name in Round.__annotations__ else where.rstrip("."), str(error)) from None


def _listed(given: Sequence[int | str], names: Sequence[str], field: str) -> list[int]:
    """The numbers of devices that are given by number or by name."""
    by_name = devices_named([one for one in given if isinstance(one, str)], names, field)
    return [one for one in given if isinstance(one, int)] + by_name


def _table(devices: Sequence[Device], around: Surroundings, where: str) -> DeviceTable:
    """The devices as a table; FieldError names the device and the field that cannot be used."""
    first = [name for name in devices[0] if name != "name"]
    values: dict[str, list[float]] = {name: [] for name in first}
    names: dict[str, int] = {}
    for at, device in enumerate(devices):
        name = device.get("name", str(at))
        if not name or name in names:
            why = "names must differ" if name else "it is empty; give it a name, or leave it out"
            raise FieldError(f"{where}devices[{at}].name", f"name is {name!r:.80}; {why}")
        names[name] = at
        if len(device) - ("name" in device) != len(first):
            _say_what_differs(device, first, f"{where}devices[{at}]")
        for column in first:
            try:
                value = device[column]  # type: ignore[literal-required]
            except KeyError:
                _say_what_differs(device, first, f"{where}devices[{at}]")
            allowed, rule = COLUMNS[column]
            if not allowed(value):
                raise FieldError(f"{where}devices[{at}].{column}", f"{column} is {value:g}; it {rule}")
            values[column].append(value)
    try:
        return table_of(list(names), values, around, f"{where}devices")
    except ValueError as error:
        raise FieldError(f"{where}devices", str(error)) from None


def _say_what_differs(device: Device, first: Sequence[str], field: str) -> NoReturn:
    missing = [name for name in first if name not in device]
    if missing:
        raise FieldError(f"{field}.{missing[0]}", f"{missing[0]} is missing, which the first device has")
    more = next(name for name in device if name not in first and name != "name")
    raise FieldError(f"{field}.{more}", f"the first device has no {more}; give it to all of them, or to none")
