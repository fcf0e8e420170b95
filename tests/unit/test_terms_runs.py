"""Speeds, powers and ends of rounds that a policy sets, in whole runs: clock, energy, records, tables and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flare
from flare.config import Config, override
from flare.rounds import RoundRecord
from flare.simulation.run import Simulation
from flare.wireless.cell import Cell
from tests.hostile import flare as flare_command

SMALL = (
    *("data.name=digits", "learning.model=logistic", "learning.device=cpu", "wireless.num_devices=6", "run.rounds=3"),
    *("wireless.total_bandwidth_hz=5e5", "wireless.deadline_s=0.5"),
)


def settings(policy: str, *more: str) -> Config:
    return override(Config(), [*SMALL, f"scheduling.policy={policy}", *more])


@pytest.fixture(scope="module")
def runs() -> dict[str, flare.Run]:
    return {name: flare.simulate(settings(name), progress=False) for name in ("tran", "xu", "all")}


def test_the_clock_of_tran_is_that_of_its_own_ends(runs: dict[str, flare.Run]) -> None:
    clock_s = 0.0
    for record in runs["tran"].records:
        assert record.selected == record.sent == list(range(6))
        assert record.deadline_s == pytest.approx(record.latency_s)
        assert record.deadline_s != 0.5
        clock_s += record.latency_s or np.nan
        assert record.clock_s == pytest.approx(clock_s)
        assert record.lower_bound is None or record.lower_bound <= (record.objective or 0.0) * (1.0 + 1e-9)


@pytest.mark.parametrize("name", ["tran", "xu"])
def test_energies_are_those_of_the_speed_and_power_that_were_set(runs: dict[str, flare.Run], name: str) -> None:
    config = settings(name)
    cell = Cell(config.wireless, config.seed)
    for index, record in enumerate(runs[name].records):
        drawn, at = cell.draw(index), np.array(record.selected)
        speed_hz = np.array(record.cpu_hz) if record.cpu_hz else drawn.cpu_hz[at]
        power_w = np.array(record.power_w)
        assert (power_w < drawn.power_w[at]).any()
        assert (speed_hz <= drawn.cpu_hz[at]).all()
        cycles = drawn.compute_s[at] * drawn.cpu_hz[at]
        np.testing.assert_allclose(record.compute_s, cycles / speed_hz, rtol=1e-12)
        np.testing.assert_allclose(record.compute_energy_j, 1e-28 * cycles * speed_hz**2, rtol=1e-12)
        bandwidth_hz = np.array(record.bandwidth_hz)
        snr_hz = drawn.snr_hz[at] * power_w / drawn.power_w[at]
        upload_s = np.array(record.payload_bits) / (bandwidth_hz * np.log2(1.0 + snr_hz / bandwidth_hz))
        np.testing.assert_allclose(record.upload_s, upload_s, rtol=1e-9)
        np.testing.assert_allclose(record.upload_energy_j, power_w * upload_s, rtol=1e-9)


def test_the_history_has_the_same_energies() -> None:
    simulation = Simulation(settings("tran", "run.rounds=2"))
    state, spent_j = simulation.start(), np.zeros(6)
    for _ in range(2):
        state, record = simulation.untrained(state, simulation.plan(state))
        spent_j[record.selected] += np.array(record.compute_energy_j) + np.array(record.upload_energy_j)
    np.testing.assert_allclose(state.history.energy_j, spent_j)
    np.testing.assert_allclose(state.history.compute_s, record.compute_s)


def test_tables_have_what_was_set(runs: dict[str, flare.Run]) -> None:
    table = runs["tran"].devices()
    (record, *_) = runs["tran"].records
    first = table[table["round"] == 0]
    np.testing.assert_allclose(first["cpu_hz"], record.cpu_hz)
    np.testing.assert_allclose(first["power_w"], record.power_w)
    np.testing.assert_allclose(first["compute_s"], record.compute_s)
    assert set(runs["all"].devices()["power_w"]) == {0.1}


def test_records_of_older_versions_are_read_and_damaged_ones_refused(runs: dict[str, flare.Run]) -> None:
    told = json.loads(json.dumps(runs["tran"].records[0].to_json()))
    assert RoundRecord.from_json(told) == runs["tran"].records[0]
    old = {name: value for name, value in told.items() if name not in ("cpu_hz", "power_w")}
    assert RoundRecord.from_json(old).power_w == []
    with pytest.raises(ValueError, match="has 1 values of power_w for 6 devices selected"):
        RoundRecord.from_json({**told, "power_w": [0.1]})


def test_a_fleet_refuses_what_its_nodes_cannot_do() -> None:
    from flare.flower.settings import refuse_settings

    for name in ("tran", "xu"):
        with pytest.raises(ValueError, match=f"policy '{name}' goes by processor speeds and transmit powers"):
            refuse_settings(settings(name))


def test_a_table_without_processors_is_refused_and_left_out_of_comparisons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "devices.csv"
    table.write_text("tau,compute_s,snr_hz\n3,0.1,1e7\n4,0.1,2e7\n")
    asked = ("schedule", str(table), "--bandwidth", "1MHz", "--deadline", "1s", "--payload", "1Mbit")
    code, _, said = flare_command(capsys, *asked, "--policy", "tran")
    assert code == 2
    assert "policy 'tran' goes by speeds and powers of devices or sets them, and the table does not say" in said
    code, told, said = flare_command(capsys, *asked, "--compare", "--json")
    assert code == 0
    setting = {name for name, one in flare.POLICIES.items() if one.needs_hardware}
    by_labels = {name for name, one in flare.POLICIES.items() if "labels" in one.needed({})}
    compared = {row["policy"] for row in json.loads(told)["policies"]}
    assert compared == set(flare.POLICIES) - setting - by_labels
    assert said.count("is left out: it goes by speeds and powers") == len(setting) == 3
    table.write_text("tau,cpu_hz,cycles_per_sample,power_dbm,gain_db\n3,1e9,1e6,10,-90\n4,2e9,1e6,20,-95\n")
    code, told, _ = flare_command(capsys, *asked, "--policy", "tran", "--json")
    assert code == 0
    for device, cpu_hz, power_w in zip(json.loads(told)["devices"], (1e9, 2e9), (0.01, 0.1), strict=True):
        cycles = device["tau"] * 1e6 * 40
        assert 0.1 * cpu_hz <= device["cpu_hz"] <= cpu_hz
        assert device["power_w"] <= power_w
        computing_j = 1e-28 * cycles * device["cpu_hz"] ** 2
        assert device["energy_j"] == pytest.approx(computing_j + device["power_w"] * device["upload_s"])
    code, words, _ = flare_command(capsys, *asked, "--policy", "tran")
    assert code == 0
    assert "Devices compute at" in words
    assert "when the policy ends it" in words
