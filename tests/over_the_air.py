"""Small runs over the air."""

from __future__ import annotations

from flare.config import Config, override
from flare.rounds import RoundRecord
from flare.simulation import Member, Simulation
from tests.driving import followed

SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=3", "run.evaluate_every=2", "data.partition=shards", "scheduling.policy=all",
)  # fmt: skip
OTA = "uplink.air=ota"
LOUD, QUIET = "wireless.noise_dbm_per_mhz=-95", "wireless.noise_dbm_per_mhz=-300"


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(*configs: Config) -> tuple[list[Member], list[list[RoundRecord]]]:
    members = [Member(Simulation(config)) for config in configs]
    return members, followed(members)
