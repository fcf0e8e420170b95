"""What the Cell screen asks: a cell drawn, moved and solved, and files of the user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

from flare.config import WirelessConfig
from flare.scheduling import solve
from flare.scheduling.cells import round_problem
from flare.studio.settings import Limits, Studio
from flare.units import dbm_per_mhz_to_watt_per_hz
from flare.wireless.cell import CELLS, Cell
from flare.wireless.channel import path_gain
from flare.wireless.compute import time_and_energy
from flare.wireless.rate import snr_hz
from tests.studio_client import Client, client_of, refused

ROOT = Path(__file__).resolve().parents[2]
EXACT = [{"policy": "exact"}]
PAPER: dict[str, Any] = {"wireless": {}, "seed": 3, "deadline_s": 1.0, "policies": EXACT}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with client_of(Studio(tmp_path_factory.mktemp("studio"), limits=Limits(max_devices=100))) as asking:
        yield asking


def view(client: Client, **change: Any) -> dict[str, Any]:
    answer = client.post("/api/cell", {**PAPER, **change})
    assert answer.status_code == 200, answer.text
    first: dict[str, Any] = answer.json()["views"][0]
    return first


def column(shown: dict[str, Any], name: str) -> list[Any]:
    return [one[name] for one in shown["devices"]]


def test_a_view_is_the_round_that_the_scheduler_solves(client: Client) -> None:
    shown = view(client, round=2, fading="rician")
    drawn = Cell(replace(CELLS["paper"], deadline_s=1.0, fading="rician"), 3).draw(2)
    best = solve(round_problem(drawn))
    assert np.flatnonzero(column(shown, "sends")).tolist() == best.selected.tolist()
    assert column(shown, "bandwidth_hz") == best.bandwidth_hz.tolist()
    assert (shown["objective"], shown["latency_s"], shown["proven"], shown["gap"]) == (
        best.objective,
        best.latency_s,
        True,
        0.0,
    )
    assert column(shown, "x_m") == pytest.approx((drawn.distance_m * np.cos(drawn.angle_rad)).tolist())
    for one in shown["devices"]:
        assert (one["reason"] is None) == (one["remedy"] is None) == one["sends"]


def test_a_device_that_a_hand_moves_and_changes_is_what_the_radio_and_the_processor_say(client: Client) -> None:
    change = {"device": 7, "x_m": -30.0, "y_m": 40.0, "tau": 11, "cpu_hz": 1.5e9, "power_w": 0.4}
    moved = view(client, changes=[change])["devices"][7]
    config = WirelessConfig()
    far = np.array([50.0])
    noise = dbm_per_mhz_to_watt_per_hz(config.noise_dbm_per_mhz)
    heard = snr_hz(np.array([0.4]), path_gain(far, config.path_loss, config.path_loss_exponent), noise)
    takes_s, _ = time_and_energy(
        np.array([11.0]), config.cycles_per_sample, config.batch_size, np.array([1.5e9]), config.capacitance
    )
    assert moved["snr_hz"] == pytest.approx(float(heard[0]), rel=1e-12)
    assert moved["compute_s"] == pytest.approx(float(takes_s[0]), rel=1e-12)
    assert (moved["distance_m"], moved["cpu_hz"], moved["power_w"], moved["tau"]) == (50.0, 1.5e9, 0.4, 11.0)
    others = [one for one in view(client)["devices"] if one["index"] != 7]
    still = [one for one in view(client, changes=[change])["devices"] if one["index"] != 7]
    assert [one["snr_hz"] for one in others] == [one["snr_hz"] for one in still]


def test_moving_a_device_in_and_out_of_reach_changes_who_sends(client: Client) -> None:
    for device, one in enumerate(view(client)["devices"]):
        if one["sends"]:
            far = view(client, wireless={"path_loss": "3gpp-uma"}, changes=[{"device": device, "x_m": 9e4, "y_m": 0.0}])
            assert not far["devices"][device]["sends"]
            assert far["devices"][device]["reason"] == "channel too weak"
            assert "even alone it needs" in far["devices"][device]["remedy"]
            return
    raise AssertionError("nobody sends in the paper's cell")


def test_two_policies_are_shown_side_by_side_with_the_same_bound(client: Client) -> None:
    both = client.post("/api/cell", {**PAPER, "policies": [{"policy": "greedy"}, {"policy": "exact"}]}).json()["views"]
    assert [one["policy"] for one in both] == ["greedy", "exact"]
    assert both[0]["lower_bound"] == both[1]["objective"] <= both[0]["objective"]
    assert both[0]["gap"] == pytest.approx(both[0]["objective"] / both[1]["objective"] - 1.0)


def test_devices_of_a_file_come_back_as_the_same_round(client: Client) -> None:
    text = (ROOT / "examples" / "devices.csv").read_text()
    told = client.post("/api/cell/load", {"name": "devices.csv", "text": text}).json()
    assert told["kind"] == "devices"
    scene = {"devices": told["devices"], "bandwidth_hz": 1e7, "deadline_s": 2.0, "payload_bits": 1e7, "policies": EXACT}
    shown = client.post("/api/cell", scene).json()["views"][0]
    assert column(shown, "name") == [line.partition(",")[0] for line in text.splitlines()[1:]]
    assert column(shown, "snr_hz") == [one["snr_hz"] for one in told["devices"]]
    faded = client.post("/api/cell", {**scene, "fading": "rayleigh", "round": 1}).json()["views"][0]
    assert column(faded, "snr_hz") != column(shown, "snr_hz")
    assert "line 2, column tau" in refused(
        client.post("/api/cell/load", {"name": "x.csv", "text": "tau,compute_s,snr_hz\n0,1,1\n"}), 422, "text"
    )


def test_devices_without_a_place_stand_where_the_papers_cell_would_have_them(client: Client) -> None:
    drawn = Cell(CELLS["paper"], 0).draw(0)
    heard = {"tau": 1.0, "compute_s": 0.1, "snr_hz": float(drawn.snr_hz[4])}
    scene = {
        "devices": [{"name": "a", **heard}],
        "bandwidth_hz": 1e7,
        "deadline_s": 2.0,
        "payload_bits": 1e7,
        "policies": EXACT,
    }
    (one,) = client.post("/api/cell", scene).json()["views"][0]["devices"]
    assert one["distance_m"] == pytest.approx(float(drawn.distance_m[4]))


def test_a_configuration_is_shown_as_its_cell(client: Client) -> None:
    text = (ROOT / "examples" / "cell.toml").read_text()
    told = client.post("/api/cell/load", {"name": "cell.toml", "text": text}).json()
    shown = view(client, wireless=told["wireless"], seed=told["seed"], deadline_s=told["wireless"]["deadline_s"])
    assert len(shown["devices"]) == told["wireless"]["num_devices"] == 60
    auto = client.post(
        "/api/cell/load", {"name": "a.toml", "text": '[scheduling]\ngamma = "auto"\npolicy = "mine"\n'}
    ).json()
    assert len(auto["remarks"]) == 2
    assert (auto["gamma"], auto["asked"]) == (10.0, {"policy": "exact", "options": {}})
    assert "nearest known key is wireless" in refused(
        client.post("/api/cell/load", {"name": "a.toml", "text": "[wireles]\n"}), 422, "text"
    )


def test_the_paths_of_a_file_are_seen_from_the_studios_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.csv").write_text("round,device,gain_db\n0,0,-100\n0,1,-90\n")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    text = '[wireless]\ntrace = "trace.csv"\nnum_devices = 2\n'
    with client_of(Studio(tmp_path)) as client:
        for name in ("cell.toml", "../../cell.toml", f"{tmp_path}/deeper/cell.toml"):
            told = client.post("/api/cell/load", {"name": name, "text": text}).json()
            assert told["wireless"] == {"trace": "trace.csv", "num_devices": 2}
        assert len(view(client, wireless=told["wireless"])["devices"]) == 2
        read = client.post("/api/new-run/read", {"toml": text}).json()
    assert read["settings"] == {"wireless.trace": "trace.csv", "wireless.num_devices": "2"}


def test_no_file_outside_the_folder_is_read(client: Client, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("round,device,gain_db\n0,0,-100\n")
    for path in ("/etc/passwd", "../../etc/passwd", str(trace)):
        assert "leads out" in refused(client.post("/api/cell", {**PAPER, "wireless": {"trace": path}}), 422, "wireless")
        text = f'[wireless]\ntrace = "{path}"\n'
        assert "leads out" in refused(client.post("/api/cell/load", {"name": "a.toml", "text": text}), 422, "wireless")


@pytest.mark.parametrize(("change", "status", "field"), [
    ({"policies": []}, 422, "policies"),
    ({"policies": EXACT * 3}, 422, "policies"),
    ({"policies": [{"policy": "<script>"}]}, 422, "policies[0].policy"),
    ({"policies": [{"policy": "ps", "options": {"num_selected": "<b>"}}]}, 422, "policies[0].options"),
    ({"wireless": {"num_devices": 101}}, 413, "wireless.num_devices"),
    ({"wireless": {"num_devices": 0}}, 422, "wireless.num_devices"),
    ({"wireless": {"fadeing": 1}}, 422, "wireless"),
    ({"devices": []}, 422, "devices"),
    ({"changes": [{"device": 40, "tau": 2}]}, 422, "changes[0].device"),
    ({"changes": [{"device": -1}]}, 422, "changes[0].device"),
    ({"changes": [{"device": 1, "tau": 0}]}, 422, "changes[0].tau"),
    ({"round": -1}, 422, "round"),
    ({"gamma": -1}, 422, "gamma"),
])  # fmt: skip
def test_what_cannot_be_shown_is_said_with_its_field(
    client: Client, change: dict[str, Any], status: int, field: str
) -> None:
    answer = client.post("/api/cell", {**PAPER, **change})
    refused(answer, status, field)
