"""A run that a test starts in a process of its own, to kill it."""

from __future__ import annotations

from pathlib import Path

import torch

from flare.config import Config, override
from flare.records import RunFolder
from flare.simulation import Member, Simulation, drive, resume

SETTINGS = (
    "wireless.num_devices=8",
    "wireless.deadline_s=1.0",
    "wireless.batch_size=10",
    "wireless.fading=rayleigh",
    "learning.model=logistic",
    "learning.method=scaffold",
    "learning.device=cpu",
    "scheduling.policy=round-robin",
    "uplink.codec=topk",
    "uplink.share=0.2",
    "run.rounds=36",
    "run.evaluate_every=7",
    "run.checkpoint_every=4",
)


def config() -> Config:
    return override(Config(), SETTINGS)


def train(folder: str) -> None:
    """Start the run in `folder`, or continue it."""
    torch.set_num_threads(1)
    path = Path(folder)
    if (path / "rounds.jsonl").exists():  # the last that a new folder gets; without it nothing was begun, nor is lost
        member = Member(Simulation(config()), RunFolder.open(path))
        resume(member)
    else:
        member = Member(Simulation(config()), RunFolder.create(path, config(), force=path.exists()))
    drive([member])
