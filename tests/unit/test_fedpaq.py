"""FedPAQ: FedAvg with quantised updates, and only with those."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flare.config import Config, override
from flare.learning.engine import make_engine
from flare.rounds.coding import transmit
from flare.simulation import Member, Simulation
from tests.driving import followed
from tests.hostile import flare as command

SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=3", "run.evaluate_every=3", "data.partition=shards",
)  # fmt: skip
PAQ = ("learning.method=fedpaq", "uplink.codec=qsgd", "uplink.bits=2")


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def test_it_is_fedavg_with_qsgd_to_the_bit() -> None:
    members = [Member(Simulation(small(*PAQ, f"learning.method={name}"))) for name in ("fedpaq", "fedavg")]
    ours, theirs = followed(members)
    assert ours == theirs
    assert torch.equal(members[0].state.weights, members[1].state.weights)
    bits = 32 + 8 * -(-2 * 650 // 8)  # a scale for the one block of 650 weights, two bits each in whole bytes
    assert {each for record in ours for each in record.payload_bits} == {bits}


def test_a_round_is_the_mean_of_what_the_quantiser_makes_of_each_update() -> None:
    """x + (1/r) sum Q(Delta_i) with s = 1 level a side: entries arrive as 0 or as the greatest of the block."""
    simulation = Simulation(small(*PAQ, "run.rounds=1"))
    state = simulation.start()
    plan = simulation.plan(state)
    jobs = simulation.jobs(state, plan, [])
    updates = make_engine(simulation.module, simulation.dataset, simulation.config.learning).train(jobs.jobs)
    member = Member(simulation)
    followed([member])
    of_round = torch.stack([each.delta for each in updates])
    (outgoing,) = simulation.updates_out(state, plan, jobs, updates)
    received = torch.stack(list(transmit([outgoing])[0].vectors.values()))
    largest = of_round.abs().max(dim=1, keepdim=True).values
    assert bool(torch.isin(received / largest, torch.tensor([-1.0, 0.0, 1.0])).all())
    assert bool((received.sign() * of_round.sign() >= 0.0).all())
    expected = state.weights.double() + received.double().mean(dim=0)
    torch.testing.assert_close(member.state.weights.double(), expected, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("codec", ["none", "topk"])
def test_with_another_codec_it_is_refused_with_the_remedy(
    codec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--set", "learning.method=fedpaq", "--set", f"uplink.codec={codec}", "--out", str(tmp_path / "run"))
    code, _, said = command(capsys, "run", *given)
    assert code == 2
    assert "'fedpaq', whose updates are sent with codec 'qsgd'" in said.replace("\n", " ")
    assert 'set it to "qsgd"' in said.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_around_it_the_codec_is_asked_for_too() -> None:
    around = small("learning.method=fedavgm", "learning.options.inner=fedpaq")
    with pytest.raises(ValueError, match="'fedavgm', whose updates are sent with codec 'qsgd'"):
        Simulation(around)
    Simulation(replace(around, uplink=small(*PAQ).uplink))
