"""Runs over the air: what is recorded, shown and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import flare
from flare.learning.job import LocalRule, Update
from flare.learning.methods import PlainMethod, method
from flare.learning.methods.base import MeanReducer
from flare.records import RunFolder
from flare.report.curves import accuracy_against_bits, summarise
from flare.report.paired import ranked_groups
from flare.report.run_report import _final_table as final_table
from flare.report.run_sections import _accuracy as accuracy_section
from flare.research import Runs
from flare.rounds import RoundRecord
from flare.simulation import Simulation
from flare.uplink.air import AIR_SCHEMES, AirScheme, Precoding, air_scheme
from tests.hostile import flare as command
from tests.over_the_air import OTA, SMALL, ended, small
from tests.plugin_files import registries_as_they_were

# --- what is shown -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Any:
    chosen = ("uplink.air_scheme=truncated-inversion", "wireless.fading=rayleigh", "uplink.air_options.threshold=0.5")
    return flare.simulate(small(OTA, "scheduling.policy=exact", *chosen), progress=False)


def test_tables_of_a_run_over_the_air(run: Any) -> None:
    rounds = run.frame()
    assert rounds["noise_std"].tolist() == [record.noise_std for record in run.records]
    assert rounds["payload_bits"].tolist() == [0.0] * 3
    devices = run.devices()
    simulation = Simulation(run.config)
    for record in run.records:
        own = devices[devices["round"] == record.round].reset_index()
        seen = simulation.observe(record.round)
        weak = np.flatnonzero(seen.snr_hz / seen.mean_snr_hz < 0.5)
        assert set(own["why_left_out"][weak]) <= {"channel too weak"}
        assert "channel too weak" not in set(own["why_left_out"].drop(weak))
        assert own["finish_s"].dropna().tolist() == [record.latency_s] * len(record.sent)
        assert own["compute_s"].tolist() == simulation.cell.draw(record.round).compute_s.tolist()
        assert own["upload_energy_j"].sum() == pytest.approx(sum(record.upload_energy_j))
    assert devices["why_left_out"].str.contains("weak").any()
    (line,) = run.plot("noise_std").get_lines()
    assert np.asarray(line.get_ydata()).tolist() == rounds["noise_std"].tolist()


def test_what_is_sent_over_the_air_is_not_drawn_against_bits(run: Any) -> None:
    refused = r'over the air, analog and not in bits; take one of "rounds", "time", "energy"'
    with pytest.raises(ValueError, match=f'x is "bits", but the run sends {refused}'):
        run.plot(x="bits")
    with pytest.raises(ValueError, match=f'x is "bits", but all runs send {refused}'):
        Runs([run, flare.simulate(small(OTA, "seed=1", "run.rounds=1"), progress=False)]).plot(x="bits")
    divided = flare.simulate(small("run.rounds=2"), progress=False)
    assert len(divided.plot("train_loss", x="bits").get_lines()[0].get_xdata()) == 2
    axes = Runs([run, divided]).plot("train_loss", x="bits")  # in company the others are drawn
    assert [len(line.get_xdata()) > 0 for line in axes.lines] == [False, True]
    assert len(run.plot("train_loss").get_lines()[0].get_xdata()) == len(run.records)


def test_older_records_say_nothing_of_noise(run: Any) -> None:
    told = run.records[0].to_json()
    del told["noise_std"]
    assert RoundRecord.from_json(told) == replace(run.records[0], noise_std=None)


def test_a_report_says_analog_and_leaves_the_run_out_of_what_a_bit_is_worth() -> None:
    configs = [small(setting, "run.rounds=2", "run.evaluate_every=1") for setting in (OTA, "uplink.codec=qsgd")]
    numbers = [flare.simulate(config, progress=False).numbers for config in configs]
    groups, ranked = ranked_groups(numbers)
    assert sorted(group.label for group in groups) == ["flare:all, qsgd, fdma", "flare:all, uncoded, over the air"]
    over = next(group for group in groups if "air" in group.label)
    assert len(accuracy_against_bits(over).x) == 0
    assert "accuracy-bits" in {panel.name for panel in accuracy_section(groups).panels}
    table = final_table(groups, [summarise(group) for group in groups], ranked)
    assert table.count(">analog<") == 1


# --- what is refused ---------------------------------------------------------------------------------------------

LINE = [part for setting in SMALL for part in ("--set", setting)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["uplink.codec=qsgd"], 'there is nothing to code; set uplink.codec to "none", or uplink.air to "fdma"'),
        (["run.payload=wireless"], 'set run.payload to "model", or uplink.air to "fdma"'),
        (["wireless.block_hz=180e3"], 'no blocks; set wireless.block_hz to 0, or uplink.air to "fdma"'),
        (["learning.method=scaffold"], "the devices of method 'scaffold' send 2 vectors a round"),
        (["learning.method=fedadam", "learning.options.inner=scaffold"], "of method 'fedadam' send 2 vectors a round"),
        (["learning.method=fedlin"], 'take another method (flare, fedavg, fednova, ...), or set uplink.air to "fdma"'),
        (["uplink.air_scheme=msee"], "there is no air scheme 'msee'; did you mean 'mse'?"),
        (["uplink.air_options.threshold=1"], "air scheme 'mse' has no option 'threshold' (its options: max_mse)"),
        (["uplink.air_options.max_mse=0"], "option 'max_mse' of air scheme 'mse' is 0; it must be"),
        (["uplink.air_senders=some"], "uplink.air_senders is"),
        (["uplink.air_noise=-1"], "uplink.air_noise is -1; it must be"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    settings: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [part for setting in (OTA, *settings) for part in ("--set", setting)]
    code, _, said = command(capsys, "run", *LINE, *given, "--quiet", "--out", str(tmp_path / "run"))
    assert code == 2
    assert says in " ".join(said.split())
    assert not (tmp_path / "run").exists()


def test_real_nodes_do_not_add_in_the_air() -> None:
    from flare.flower.settings import refuse_settings

    with pytest.raises(ValueError, match=r'uplink.air is "ota", but the nodes .* set it to "fdma", or simulate'):
        refuse_settings(small(OTA))


def test_a_method_with_a_reducer_of_its_own_is_refused() -> None:
    with registries_as_they_were():

        class OneByOne:
            def __init__(self, now: Any) -> None:
                self._reducer = MeanReducer(now, {})

            def add(self, device: int, rule: LocalRule, update: Update) -> None:
                self._reducer.add(device, rule, update)

            def end(self) -> tuple[Tensor, dict[str, Tensor]]:
                return self._reducer.end()

        @method("median")
        class Median(PlainMethod):
            def rules(self, state: Any, now: Any, common_gradient: Any) -> list[LocalRule]:
                return [LocalRule(now.local_lr, int(now.tau[i])) for i in now.selected]

            def reducer(self, state: Any, now: Any) -> Any:
                return OneByOne(now)

        Simulation(small("learning.method=median"))
        with pytest.raises(ValueError, match=r"'median' has a reducer of its own.* let it answer a MeanReducer"):
            Simulation(small(OTA, "learning.method=median"))


def test_a_run_in_which_nobody_is_heard_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for settings, says in (
        (["uplink.air_options.max_mse=1e-30"], "air scheme 'mse' hears none of the 6 devices; it would take"),
        (["wireless.total_bandwidth_hz=100"], "an update is 3.25 s on the air, the deadline is 1 s; it would take"),
    ):
        given = [part for setting in (OTA, *settings) for part in ("--set", setting)]
        out = str(tmp_path / settings[0])
        code, said, error = command(capsys, "run", *LINE, *given, "--set", "run.rounds=1", "--quiet", "--out", out)
        assert code == 0, error
        assert says in " ".join(said.split())


def test_schemes_and_their_options_are_listed_and_set_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, said, _ = command(capsys, "list", "air-schemes")
    assert code == 0
    assert all(name in said for name in AIR_SCHEMES)
    line = ["--set", OTA, "-o", "max_mse=0.5", "--set", "run.rounds=1", "--quiet", "--out", str(tmp_path / "run")]
    code, _, said = command(capsys, "run", *LINE, *line)
    assert code == 0, said
    assert dict(RunFolder.open(tmp_path / "run").config.uplink.air_options) == {"max_mse": 0.5}


def test_a_scheme_of_ones_own_is_part_of_the_run() -> None:
    with registries_as_they_were():

        @air_scheme("plain")
        class Plain(AirScheme):
            def can_send(self, link: Any, shares: Any) -> Any:
                return np.arange(link.num_devices) != 2

            def precoding(self, link: Any, shares: Any, told: Any) -> Precoding:
                return Precoding(0.0, 1e3)

        (member,), (records,) = ended(small(OTA, "uplink.air_scheme=plain"))
        assert {record.noise_std for record in records} == {1.0 / (1e3 * 5)}
        assert all(record.sent == [0, 1, 3, 4, 5] for record in records)
        assert member.simulation.identity["air scheme"] == "plain"
        assert "over the air plain" in repr(member.simulation)
        assert member.simulation.identity["air scheme code"]
    assert "air scheme" not in Simulation(small()).identity
