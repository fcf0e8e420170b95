"""wireless.guard: what schedules leave free of the deadline, the same for the simulator and for a fleet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flare.config import Config, WirelessConfig, load, override, to_toml
from flare.learning.methods import make_method
from flare.rounds import BaseStation, Observation, Plan, first_state, plan_round
from flare.rounds.why_nobody import why_nobody_sends
from flare.scheduling import solve
from flare.scheduling.cells import round_problem
from flare.wireless.cell import Cell


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
