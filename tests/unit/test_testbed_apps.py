"""The two apps of the testbed without a network: who writes down what and when, and what nodes say of themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flare.config import Config, to_toml
from flare.flower import FlareStrategy, trained_arrays
from flare.records import RunFolder
from flare.testbed import client_app, network, server_app, task
from flare.testbed.moments import FETCHED, SENT, TRAINED, read_moments
from flare.testbed.programs import Programs, make_keys
from flare.testbed.settings import Settings
from flare.wireless.cell import Cell
from tests.fleets import FakeGrid, Node

QUICK = (
    "wireless.cycles_per_sample=3e5",
    "wireless.deadline_s=20",
    "wireless.tau_law=list",
    "wireless.tau_values=[2, 5, 1]",
)


def node(device: int, run_config: dict[str, Any]) -> Node:
    """A node that runs the testbed's ClientApp."""
    context = Context(1, 10 + device, {"partition-id": device}, RecordDict(), run_config)
    return lambda message: [client_app.app(message, context)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """A folder in which a run of three devices was carried out, and its settings."""
    folder = tmp_path_factory.mktemp("bed")
    config = Settings(devices=3, rounds=2, update_bits=1e5, changed=QUICK).config("cm")
    (folder / "config.toml").write_text(to_toml(config))
    told = {"config": str(folder / "config.toml"), "moments": str(folder / "moments.jsonl"), "run": "cm"}
    grid = server_app.TimedGrid(FakeGrid({10 + k: node(k, told) for k in range(3)}), "cm", folder / "moments.jsonl")
    FlareStrategy(config, folder=folder / "run", poll_s=0.001).start(grid, trained_arrays(task.model_of(config)))
    return folder, config


def test_nodes_are_the_devices_of_the_cell(ran: tuple[Path, Config]) -> None:
    folder, config = ran
    records = RunFolder.open(folder / "run").records()
    for index, record in enumerate(records):
        drawn = Cell(config.wireless, config.seed).draw(index)
        assert record["selected"] == record["sent"] == [0, 1, 2]
        assert record["tau"] == drawn.tau.tolist()
        assert record["compute_s"] == pytest.approx(drawn.compute_s.tolist())
        assert record["faults"] == []


def test_every_device_is_noted_three_times_a_round(ran: tuple[Path, Config]) -> None:
    folder, config = ran
    at = {(each.what, each.round, each.device): each for each in read_moments(folder / "moments.jsonl")}
    assert len(at) == 3 * 2 * 3
    for index in range(2):
        compute_s = Cell(config.wireless, config.seed).draw(index).compute_s
        for device in range(3):
            sent, trained, fetched = (at[what, index, device] for what in (SENT, TRAINED, FETCHED))
            assert sent.time_s <= trained.began_s <= trained.time_s <= fetched.time_s
            assert trained.time_s - trained.began_s >= compute_s[device] - 1e-3  # it was not done before its time
            assert 0.0 < trained.busy_s <= trained.time_s - trained.began_s


def test_each_device_has_a_link_of_its_own() -> None:
    radio = server_app.radio_of(Settings(devices=3).config("cm"))
    assert {radio._link(device).namespace for device in range(3)} == {network.namespace(device) for device in range(3)}


def test_the_files_that_flower_is_given(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "bed", tls=True)
    assert 'root-certificates = "' in (tmp_path / "bed/home/.flwr/config.toml").read_text()
    assert programs.certificate == tmp_path / "bed/keys/ca.crt"
    for side in ("server_app", "client_app"):
        assert f"from flare.testbed.{side} import app" in (tmp_path / f"bed/app/testbed/{side}.py").read_text()
    assert "insecure = true" in (Programs(tmp_path / "plain", tls=False).folder / "home/.flwr/config.toml").read_text()


def test_the_certificate_is_for_every_address_of_the_server(tmp_path: Path) -> None:
    make_keys(tmp_path, 3)
    words = ["openssl", "x509", "-in", str(tmp_path / "server.crt"), "-noout", "-text"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for device in range(3):
        assert f"IP Address:{network.server_address(device)}" in told
    with pytest.raises(OSError, match="openssl req"):
        make_keys(tmp_path / "nowhere", 1)
