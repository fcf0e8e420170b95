"""Runs that were stopped and continued: rounds and state, to the last bit, of the run that was never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from flare.config import Config, override
from flare.simulation import Member, Simulation
from tests.driving import continued, followed, same_state, stop_after

SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=4", "run.evaluate_every=2", "data.partition=shards",
    "scheduling.policy=round-robin", "scheduling.options.num_selected=3",
)  # fmt: skip
TOPK = ("uplink.codec=topk", "uplink.share=0.05")
AUTO = (
    "uplink.codec=qsgd", "uplink.bits=auto", "scheduling.policy=exact", "wireless.total_bandwidth_hz=4e3",
    "wireless.deadline_s=0.5", "wireless.num_devices=8", "scheduling.options={}",
)  # fmt: skip
CASES = {
    "error feedback": TOPK,
    "error feedback of gradients": (*TOPK, "learning.method=fedlin"),
    "a coded broadcast": (
        "uplink.codec=topk", "wireless.downlink=broadcast", "wireless.downlink_codec=qsgd",
        "wireless.downlink_options.bits=6",
    ),
    "over the air": ("uplink.air=ota", "wireless.noise_dbm_per_mhz=-95"),
    "chosen bits": AUTO,
    "chosen bits of controls": (*AUTO, "learning.method=scaffold"),
    "chosen bits of gradients": (*AUTO, "learning.method=fedlin"),
}  # fmt: skip


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_run_never_interrupted(case: str, tmp_path: Path) -> None:
    config = small(*CASES[case])
    whole = Member(Simulation(config))
    (records,) = followed([whole])
    stop_after(config, tmp_path / "run", 2)
    member, again, left_after = continued(config, tmp_path / "run")
    assert left_after == 2
    assert again == records
    assert same_state(member.state, whole.state)
    assert any(record.sent for record in records[2:])
