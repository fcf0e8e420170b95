"""What runs on every node of the testbed: real training, slowed to the processor that the device is modelled with.

A node does its steps as fast as this machine can, and then waits until the modelled device would be done. So the time
of computing is exact, whatever else the machine does, as long as the real steps take less; where they take longer, the
moments say so. (A limit on processor time by a cgroup would also slow down Flower's own programs.)

Flower starts a process for every message. What a question needs is imported at once, PyTorch only to train: with many
nodes on one machine this is most of what the machine does.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import final

from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flare.config import Config, load
from flare.testbed.moments import TRAINED, Moment, note
from flare.wireless.cell import RESOURCES, Cell, CellRound
from flare.wireless.compute import compute_s


@lru_cache(maxsize=1)
def _config(path: str) -> Config:
    return load(path)


def _config_of(context: Context) -> Config:
    return _config(str(context.run_config["config"]))


def _round_of(config: Config, message: Message) -> CellRound:
    index = int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
    return Cell(config.wireless, config.seed).draw(index)


@final
class SlowedApp(ClientApp):
    """A ClientApp of a modelled device: it tells what the cell gives the device in a round, and its answer to work
    comes when the modelled device would have it, which is noted."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        config = _config_of(context)
        if message.metadata.message_type == MessageType.QUERY:
            said = _round_of(config, message).reported(int(context.node_config["partition-id"]))
            return Message(RecordDict({RESOURCES: MetricRecord({**said})}), reply_to=message)
        from flare.testbed.training import training_app  # here: it imports PyTorch

        app = training_app(config)
        began = time.time()
        answer = app(message, context)
        busy_s = time.time() - began
        work = message.content.config_records["config"]
        index, device, steps = (int(work[name]) for name in ("round", "device", "steps"))  # type: ignore[arg-type]
        end = began + modelled_s(config, _round_of(config, message), device, steps)
        time.sleep(max(0.0, end - time.time()))
        run, moments = str(context.run_config["run"]), Path(str(context.run_config["moments"]))
        note(moments, Moment(TRAINED, run, index, device, time.time(), began_s=began, busy_s=busy_s))
        return answer


def modelled_s(config: Config, drawn: CellRound, device: int, steps: int) -> float:
    """How long the modelled device computes in a round."""
    wireless = config.wireless
    return float(compute_s(steps, wireless.cycles_per_sample, wireless.batch_size, drawn.cpu_hz[device]))  # type: ignore[arg-type]


app = SlowedApp()
