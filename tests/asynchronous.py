"""Small runs whose devices compute across rounds."""

from __future__ import annotations

from flare.config import Config, override
from flare.rounds import RoundRecord
from flare.simulation import Member, Simulation
from tests.driving import followed

SMALL = (
    *("wireless.num_devices=6", "wireless.deadline_s=1.0", "wireless.batch_size=10", "wireless.fading=rayleigh"),
    *("learning.model=logistic", "learning.device=cpu", "learning.method=fedavg", "data.partition=shards"),
    *("run.payload=wireless", "run.rounds=8", "run.evaluate_every=4", "scheduling.bound=false"),
)
ASYNC = ("learning.asynchronous=true", "scheduling.options.max_devices=2")


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(config: Config) -> tuple[Member, list[RoundRecord]]:
    member = Member(Simulation(config))
    return member, followed([member])[0]


def ages(records: list[RoundRecord]) -> list[int]:
    return [age for record in records for age in record.age]
