"""What data that all devices share cost before the first round (`flare.data.shared`): a download and a warm-up.

The download is on the clock, once, before the first round. The base station sends on the whole band, with the power
`wireless.downlink_power_dbm`, over the channels of the first round: all of G at once to everybody, at the rate of the
weakest device, or to each device its own part, one device after another, whichever is shorter. It counts whether the
broadcast of models does (`wireless.downlink`) or not. Devices spend no energy on it: receiving is not counted anywhere.

In the warm-up the base station trains the start model on G, by plain steps of the local rate. It takes its own time,
which is not that of the devices: nothing of it is on the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from flare.config import Config
from flare.data.dataset import Dataset
from flare.data.shared import part_size, sample_bits
from flare.learning.batches import draw_batches
from flare.learning.job import Job, LocalRule
from flare.rng import stream
from flare.rounds import Observation
from flare.types import Indices
from flare.wireless.rate import broadcast_s, upload_s


@final
@dataclass(frozen=True)
class Download:
    """How long the shared data are sent before the first round, and how many bits that are."""

    lasts_s: float = 0.0
    bits: float = 0.0


def download_of(config: Config, dataset: Dataset, shared: Indices, seen: Observation) -> Download:
    """The download of the shared samples, to devices that report `seen`; ValueError where one of them hears nothing."""
    wireless, of_sample = config.wireless, float(sample_bits(dataset))
    heard_hz = seen.downlink_snr_hz(wireless)
    all_bits, part_bits = of_sample * len(shared), of_sample * part_size(config.data, len(shared))
    at_once = Download(broadcast_s(all_bits, wireless.total_bandwidth_hz, heard_hz), all_bits)
    each_s = upload_s(part_bits, np.full_like(heard_hz, wireless.total_bandwidth_hz), heard_hz)  # (devices,)
    in_turn = Download(math.fsum(each_s), part_bits * len(each_s))
    if not math.isfinite(at_once.lasts_s):
        raise ValueError(
            f"the shared data would never reach device {int(heard_hz.argmin())}: the base station sends with too "
            "little power (wireless.downlink_power_dbm) for its channel"
        )
    return min(at_once, in_turn, key=lambda each: each.lasts_s)


def warm_up_job(config: Config, start: Tensor, shared: Indices) -> Job | None:
    """The warm-up from the `start` weights; None where there is none."""
    epochs, batch_size = config.data.warm_up_epochs, config.wireless.batch_size
    if len(shared) == 0 or epochs == 0:
        return None
    steps = -(-epochs * len(shared) // batch_size)
    batches = draw_batches(shared, steps, batch_size, rng=stream(config.seed, "warm-up"))
    return Job(start, LocalRule(config.learning.local_lr, steps), batches)
