"""The service: the same answer as the command line, and errors that name the field."""

from __future__ import annotations

import asyncio
import csv
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

from flare.scheduling import POLICIES
from flare.studio import schedule_api
from flare.studio.answers import FieldError
from flare.studio.schedule_api import EXAMPLE
from flare.studio.settings import Limits, Studio
from flare.studio.working import Worker
from tests.hostile import TEXTS, flare
from tests.studio_client import Client, client_of, refused

ROOT = Path(__file__).resolve().parents[2]
DEVICES: list[dict[str, Any]] = EXAMPLE["devices"]  # type: ignore[assignment]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    small = Limits(max_devices=50, max_batch=5, max_batch_devices=100)
    with client_of(Studio(tmp_path_factory.mktemp("service"), service=True, limits=small)) as asking:
        yield asking


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table as the service takes them."""
    with path.open(newline="") as file:
        return [
            {name: text if name == "name" else float(text) for name, text in row.items()}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize(("table", "more", "options"), [
    ("devices.csv", {"deadline_s": 2.0, "payload_bits": 1e7}, ["--deadline", "2s", "--payload", "10Mbit"]),
    ("network.csv", {"deadline_s": 2.0}, ["--deadline", "2s"]),
    ("devices.csv", {"deadline_s": 2.0, "payload_bits": 1e7, "policy": "greedy", "gamma": 3.0, "never": [0],
     "block_hz": 180e3, "max_devices": 4},
     ["--deadline", "2s", "--payload", "10Mbit", "--policy", "greedy", "--gamma", "3", "--never", "0",
      "--block", "180kHz", "--max-devices", "4"]),
    ("devices.csv", {"deadline_s": 2.0, "payload_bits": 1e7, "policy": "random", "seed": 5, "round": 2},
     ["--deadline", "2s", "--payload", "10Mbit", "--policy", "random", "--seed", "5", "--round", "2"]),
    ("devices.csv", {"deadline_s": 2.0, "payload_bits": 1e7, "policy": "greedy", "options": {"max_devices": 2}},
     ["--deadline", "2s", "--payload", "10Mbit", "--policy", "greedy", "-o", "max_devices=2"]),
    ("network.csv", {"deadline_s": 2.0, "guard": "100ms"}, ["--deadline", "2s", "--guard", "100ms"]),
    ("network.csv", {"deadline_s": 2.0, "guard": 0.25}, ["--deadline", "2s", "--guard", "0.25"]),
])  # fmt: skip
def test_the_answer_is_what_the_command_line_prints(
    client: Client, capsys: pytest.CaptureFixture[str], table: str, more: dict[str, Any], options: list[str]
) -> None:
    path = ROOT / "examples" / table
    code, out, err = flare(capsys, "schedule", str(path), "--bandwidth", "10MHz", *options, "--json")
    assert code == 0, err
    answer = client.post("/api/schedule", {"devices": rows(path), "bandwidth_hz": 1e7, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json() == json.loads(out)


def test_every_policy_that_one_round_tells_enough_is_answered(client: Client) -> None:
    devices = rows(ROOT / "examples" / "devices.csv")
    for name, one in POLICIES.items():
        body = {"devices": devices, "bandwidth_hz": 1e7, "deadline_s": 2.0, "payload_bits": 1e7, "policy": name}
        answer = client.post("/api/schedule", body)
        if "labels" in one.needed({}) or one.probes({}):
            assert "run" in refused(answer, 422, "policy")
        else:
            assert answer.status_code == 200, answer.text
            assert answer.json()["policy"] == name
            assert answer.json()["lower_bound"] is not None or one.own_deadline


@pytest.mark.parametrize(("change", "field", "words"), [
    ({"devices": []}, "devices", "is empty; give at least 1"),
    ({"devices": [{"tau": 1}]}, "devices", "compute_s"),
    ({"devices": [{"tau": 0, "compute_s": 1, "snr_hz": 1}]}, "devices[0].tau", "at least 1"),
    ({"devices": [*DEVICES, {"name": "d", "tau": 1, "compute_s": 1}]}, "devices[3].snr_hz", "missing"),
    ({"devices": [*DEVICES, {**DEVICES[0], "name": "d", "weight": 2}]}, "devices[3].weight", "to all of them"),
    ({"devices": [DEVICES[0], DEVICES[0]]}, "devices[1].name", "differ"),
    ({"devices": [{**DEVICES[0], "snr_hz": -1}]}, "devices[0].snr_hz", "greater than 0"),
    ({"devices": [{**DEVICES[0], "snr": 1}]}, "devices[0].snr", "did you mean 'snr_hz'"),
    ({"devices": [{**DEVICES[0], "tau": "3"}]}, "devices[0].tau", "number"),
    ({"devices": [{**DEVICES[0], "cpu_hz": 1e9}]}, "devices", "twice"),
    ({"bandwidth_hz": 0}, "bandwidth_hz", "greater than 0"),
    ({"bandwidth_hz": 1e16}, "bandwidth_hz", "at most"),
    ({"bandwidth_hz": "10MHz"}, "bandwidth_hz", "must be a number; it is '10MHz', so write 10000000, a number in Hz"),
    ({"deadline_s": "soon"}, "deadline_s", "write a number in s, without the unit"),
    ({"guard": 1.5}, "guard", 'guard is 1.5; it must be a finite number, at least 0, at most 0.95, or a time'),
    ({"guard": "soon"}, "guard", 'or a time with its unit such as "400ms"'),
    ({"guard": "2s"}, "guard", "nothing of the deadline of 400 ms is left"),
    ({"guard": []}, "guard", 'must be a share such as 0.05, or a time such as "300ms"; it is list'),
    ({"bandwith_hz": 1}, "bandwith_hz", "did you mean 'bandwidth_hz'"),
    ({"deadline_s": None}, "deadline_s", "number"),
    ({"gamma": True}, "gamma", "number"),
    ({"policy": "exakt"}, "policy", "did you mean 'exact'"),
    ({"options": {"window": 3}}, "options", "no option"),
    ({"options": {"time_limit_s": 1e6}}, "options.time_limit_s", "from 0 to 2"),
    ({"options": []}, "options", "object"),
    ({"must": [3]}, "must", "0 to 2"),
    ({"must": [0], "never": [0]}, "", "must and in never"),
    ({"max_devices": 0}, "max_devices", "must be at least 1; it is 0"),
    ({"must": ["z"]}, "must", "there is no device 'z'"),
    ({"must": [1.5]}, "must[0]", "the name of a device, or its number"),
    ({"max_devices": 1.5}, "max_devices", "must be a whole number; it is 1.5"),
    ({"block_hz": 2e7}, "block_hz", "whole band"),
    ({"devices": [{"tau": 1, "compute_s": 0, "snr_hz": 1}] * 51}, "devices", "at most 50"),
])  # fmt: skip
def test_a_refusal_names_the_field_and_says_why(client: Client, change: dict[str, Any], field: str, words: str) -> None:
    answer = client.post("/api/schedule", {**EXAMPLE, **change})
    status = 413 if "at most 50" in words else 422
    assert words in refused(answer, status, field)
    inside = client.post("/api/schedule/batch", {"rounds": [EXAMPLE, {**EXAMPLE, **change}]})
    assert words in refused(inside, status, f"rounds[1].{field}" if field else "rounds[1]")


def test_what_is_missing_and_what_is_no_json_is_said(client: Client) -> None:
    for name in ("devices", "bandwidth_hz", "deadline_s", "payload_bits"):
        assert f"{name} is missing; give it" in refused(
            client.post("/api/schedule", {key: value for key, value in EXAMPLE.items() if key != name}), 422, name
        )
    for text in TEXTS:
        body = text.encode("utf-8", "surrogatepass")
        answer = client.ask("POST", "/api/schedule", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), text
        assert answer.json()["error"]["message"]
    deep = b'{"options":' * 5000 + b"1" + b"}" * 5000
    assert (
        client.ask("POST", "/api/schedule", content=deep, headers={"Content-Type": "application/json"}).status_code
        == 400
    )


def test_a_batch_is_what_its_rounds_are_and_no_larger_than_it_may_be(client: Client) -> None:
    other = {**EXAMPLE, "gamma": 0.5, "policy": "greedy"}
    both = client.post("/api/schedule/batch", {"rounds": [EXAMPLE, other]}).json()["schedules"]
    assert both == [client.post("/api/schedule", one).json() for one in (EXAMPLE, other)]
    assert "at most 5" in refused(client.post("/api/schedule/batch", {"rounds": [EXAMPLE] * 6}), 413, "rounds")
    wide = {**EXAMPLE, "devices": [{"tau": 1, "compute_s": 0, "snr_hz": 1}] * 50}
    assert "at most 100" in refused(client.post("/api/schedule/batch", {"rounds": [wide] * 3}), 413, "rounds")


def test_what_takes_too_long_is_given_up_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_api, "scheduled", lambda *asked: time.sleep(0.3))
    with client_of(Studio(tmp_path, service=True, limits=Limits(max_seconds=0.02))) as hurried:
        assert "fewer devices" in refused(hurried.post("/api/schedule", EXAMPLE), 503)


def test_who_is_given_up_keeps_its_place_until_it_ends() -> None:
    running, most, go_on = 0, 0, threading.Event()

    def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(2)
        running -= 1
        return "done"

    async def ask(worker: Worker) -> int:
        with pytest.raises(FieldError) as refusal:
            await worker.compute(slow)
        return refusal.value.status

    async def all_of_it() -> None:
        worker = Worker(Limits(max_at_once=2, max_seconds=0.05))
        for _ in range(3):
            assert await asyncio.gather(*(ask(worker) for _ in range(3))) == [503] * 3
        assert most == 2
        go_on.set()
        assert await Worker(Limits(max_at_once=1)).compute(slow) == "done"

    asyncio.run(all_of_it())


def test_devices_that_must_or_must_not_send_are_given_by_name_or_number(client: Client) -> None:
    by_number = client.post("/api/schedule", {**EXAMPLE, "must": [2], "never": [0]}).json()
    by_name = client.post("/api/schedule", {**EXAMPLE, "must": ["c"], "never": ["a"]}).json()
    assert by_name == by_number
    assert [one["selected"] for one in by_name["devices"]][::2] == [False, True]


def test_nobody_sends_is_an_answer(client: Client) -> None:
    told = client.post("/api/schedule", {**EXAMPLE, "deadline_s": 1e-3}).json()
    assert (told["status"], told["num_selected"], told["objective"]) == ("infeasible", 0, None)
    assert "deadline" in told["why_nobody"]


def test_the_service_tells_programs_what_it_takes_and_has_no_screens(client: Client) -> None:
    told = client.get("/api/openapi.json").json()
    asked = told["paths"]["/api/schedule"]["post"]["requestBody"]["content"]["application/json"]
    assert set(asked["schema"]["required"]) == {"devices", "bandwidth_hz"}
    assert "$ref" not in json.dumps(asked["schema"])
    assert client.post("/api/schedule", asked["example"]).status_code == 200
    assert client.get("/docs").status_code == client.get("/static/js/service.js").status_code == 200
    refused(client.post("/api/cell", {}), 404)
    assert client.get("/api/about").json()["folder"] == ""
