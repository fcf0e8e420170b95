"""wireless.guard: what schedules leave free of the deadline, the same for the simulator and for a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flare.config import Config, WirelessConfig, load, override, to_toml
from flare.learning.methods import make_method
from flare.rounds import BaseStation, Observation, Plan, first_state, plan_round
from flare.rounds.why_nobody import why_nobody_sends
from flare.scheduling import solve
from flare.scheduling.cells import round_problem
from flare.units import human
from flare.wireless.cell import Cell
from tests.hostile import flare


@pytest.mark.parametrize(
    ("guard", "usable_s"), [(0.0, 2.0), (0, 2.0), (0.25, 1.5), ("500ms", 1.5), ("0.5 s", 1.5), (0.95, 0.1)]
)
def test_the_deadline_less_the_guard(guard: float | str, usable_s: float) -> None:
    assert WirelessConfig(deadline_s=2.0, guard=guard).usable_s == pytest.approx(usable_s, rel=1e-12)


@pytest.mark.parametrize("guard", [-0.1, 0.96, "5", "-1s", "0s", "soon", "3dB", True, float("nan")])
def test_what_is_no_guard(guard: object) -> None:
    with pytest.raises(
        ValueError, match=r'wireless\.guard is .*at most 0\.95, or a time with its unit such as "400ms"'
    ):
        WirelessConfig(guard=guard)  # type: ignore[arg-type]


def test_a_guard_leaves_some_of_the_deadline() -> None:
    with pytest.raises(ValueError, match=r"guard is 2s, and wireless\.deadline_s is 1\.5.*must be shorter"):
        WirelessConfig(deadline_s=1.5, guard="2s")


@pytest.mark.parametrize("guard", [0.125, "300ms"])
def test_a_file_holds_it(guard: float | str, tmp_path: Path) -> None:
    config = override(Config(), [f"wireless.guard={guard}"])
    assert config.wireless.guard == guard
    (tmp_path / "a.toml").write_text(to_toml(config))
    assert load(tmp_path / "a.toml") == config


def test_words_that_people_type_for_it() -> None:
    with pytest.raises(ValueError, match=r"wireless\.guard"):
        override(Config(), ["wireless.margin=0.1"])


def test_every_device_finishes_before_the_guard_begins() -> None:
    """All policies of the paper, in a cell that has time to spare without it."""
    plain = WirelessConfig(num_devices=20)
    guarded = WirelessConfig(num_devices=20, guard="100ms")
    for policy in ("exact", "greedy", "cp", "dm", "cm"):
        late, early = (solve(round_problem(Cell(each, 1).draw(0)), policy) for each in (plain, guarded))
        assert early.latency_s <= 0.3 + 1e-9
        assert np.all((early.compute_s + early.upload_s)[early.selected] <= 0.3 + 1e-9)
        if policy in ("cp", "dm", "cm"):  # these take devices for as long as the deadline allows
            assert late.latency_s > 0.3
            assert early.num_selected < late.num_selected


def planned(config: Config) -> tuple[BaseStation, Plan]:
    """The first round of the cell."""
    drawn = Cell(config.wireless, config.seed).draw(0)
    size = config.wireless.num_devices
    seen = Observation(
        devices=np.arange(size),
        num_devices=size,
        tau=drawn.tau,
        cpu_hz=drawn.cpu_hz,
        snr_hz=drawn.snr_hz,
        power_w=drawn.power_w,
        num_samples=np.full(size, 100.0),
    )
    method = make_method(config.learning)
    station = BaseStation(config, method, 10)
    plan = plan_round(station, first_state(torch.zeros(10), method.start(10, 0), 0), seen)
    assert plan is not None
    return station, plan


def test_the_round_of_simulator_and_fleet_keeps_its_deadline() -> None:
    config = override(Config(seed=1), ["wireless.num_devices=20", "scheduling.policy=cm", "wireless.guard=0.25"])
    _, plan = planned(config)
    assert plan.problem.deadline_s == pytest.approx(0.3)
    assert plan.deadline_s == 0.4  # an update that comes within the guard is in time
    assert plan.latency_s <= 0.3 + 1e-9


@pytest.mark.parametrize("more", [[], ["uplink.air=ota"]])
def test_why_nobody_sends_is_told_of_what_the_guard_leaves(more: list[str]) -> None:
    settings = ["wireless.num_devices=3", "wireless.deadline_s=1e-4", *more]
    guarded = why_nobody_sends(*planned(override(Config(seed=1), [*settings, "wireless.guard=0.25"])))
    assert "the deadline less the guard is 75 µs" in guarded
    assert "(wireless.deadline_s" in guarded
    without = why_nobody_sends(*planned(override(Config(seed=1), settings)))
    assert "the deadline is 100 µs" in without
    assert "guard" not in without


# --- flare schedule ---------------------------------------------------------------------------------------------

TABLE = "name,tau,compute_s,snr_hz,deadline_s\na,3,0.05,4e7,2\nb,1,0.02,9e6,1.5\nc,6,0.31,2e7,0.9\n"
LESS_300MS = "name,tau,compute_s,snr_hz,deadline_s\na,3,0.05,4e7,1.7\nb,1,0.02,9e6,1.2\nc,6,0.31,2e7,0.6\n"
ROUND = ("--bandwidth", "10MHz", "--payload", "10Mbit", "--policy", "cm")


def scheduled(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, said, error = flare(capsys, "schedule", *arguments, "--json")
    assert (code, error) == (0, "")
    answer: dict[str, Any] = json.loads(said)
    return answer


@pytest.mark.parametrize("round_", [["--deadline", "1s"], []])
def test_a_table_is_scheduled_as_if_every_deadline_were_earlier(
    round_: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The round's deadline, and those of the devices; without the first, the latest of the others is the round's."""
    for name, text in (("a.csv", TABLE), ("b.csv", LESS_300MS)):
        (tmp_path / name).write_text(text)
    found = scheduled(capsys, str(tmp_path / "a.csv"), *ROUND, *round_, "--guard", "300ms")
    earlier = ["--deadline", "0.7s"] if round_ else []
    expected = scheduled(capsys, str(tmp_path / "b.csv"), *ROUND, *earlier)
    assert found.pop("guard_s") == pytest.approx(0.3)
    assert expected.pop("guard_s") == 0.0
    assert found["deadline_s"] == pytest.approx(0.7 if round_ else 1.7)
    finish_s, same_s = ([device.pop("finish_s") for device in one["devices"]] for one in (found, expected))
    assert finish_s == pytest.approx(same_s, nan_ok=True) if None not in finish_s else finish_s == same_s
    assert [device["bandwidth_hz"] for device in found["devices"]] == pytest.approx(
        [device["bandwidth_hz"] for device in expected["devices"]]
    )


def test_a_cell_is_scheduled_as_the_setting_says(capsys: pytest.CaptureFixture[str]) -> None:
    cell = ("--cell", "paper", "--policy", "cm")
    by_option = scheduled(capsys, *cell, "--guard", "0.25")
    assert by_option == scheduled(capsys, *cell, "--set", "wireless.guard=0.25")
    assert (by_option["deadline_s"], by_option["guard_s"]) == pytest.approx((0.3, 0.1))
    assert by_option["num_selected"] < scheduled(capsys, *cell)["num_selected"]


def test_the_guard_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    _, said, _ = flare(capsys, "schedule", str(tmp_path / "a.csv"), *ROUND, "--deadline", "1s", "--guard", "0.25")
    assert "before the 750 ms that a guard of 250 ms leaves of the deadline of 1 s." in said
    _, said, _ = flare(capsys, "schedule", str(tmp_path / "a.csv"), *ROUND, "--deadline", "1s")
    assert "before the deadline of 1 s." in said


def test_a_tighter_deadline_of_a_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    network = Path(__file__).resolve().parents[2] / "examples" / "network.csv"  # its devices have 0.25 to 0.5 s
    command = ("schedule", str(network), "--bandwidth", "20MHz", "--deadline", "2s")
    senders = [device for device in scheduled(capsys, *command[1:])["devices"] if device["selected"]]
    tightest_s = min(each["deadline_s"] - each["finish_s"] for each in senders)
    said = " ".join(flare(capsys, *command)[1].split())
    told = f"the deadline of 2 s; of the devices' own deadlines the tightest is met with {human(tightest_s, 's')} left."
    assert told in said
    guarded = " ".join(flare(capsys, *command, "--guard", "0.05")[1].split())
    assert "guard of 100 ms leaves of the deadline of 2 s; of the devices' own deadlines the tightest" in guarded


@pytest.mark.parametrize("must", [[], ["--must", "a"]])
def test_a_deadline_that_would_help_is_told_with_the_guard(
    must: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("name,tau,compute_s,snr_hz\na,3,0.05,4e7\n")
    command = ("schedule", str(tmp_path / "a.csv"), *ROUND[:4], *must, "--guard", "300ms")
    _, said, _ = flare(capsys, *command, "--deadline", "310ms")
    said = " ".join(said.split())
    assert "the deadline less the guard is 10 ms" in said
    enough = said.partition("a deadline of at least ")[2].partition(" (--deadline)")[0].replace(" ", "")
    assert "Nobody sends" in said
    assert "1 of 1 devices send" in flare(capsys, *command, "--deadline", enough)[1]


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        ("1.5", '--guard is the text "1.5"; it must be a finite number, at least 0, at most 0.95, or a time'),
        ("soon", '--guard is the text "soon"; it must be'),
        (
            "950ms",
            "guard: nothing of the 900 ms that device 'c' has (deadline_s) is left; take a shorter one, or leave",
        ),
        ("3s", "guard: nothing of"),
    ],
)
def test_a_guard_that_cannot_be_is_one_error(
    guard: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    code, _, error = flare(capsys, "schedule", str(tmp_path / "a.csv"), *ROUND, "--guard", guard)
    assert code == 2
    assert why in " ".join(error.split())
