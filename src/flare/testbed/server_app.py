"""What runs beside the SuperLink of the testbed: the strategy, with a radio that shapes the links of the devices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from flare.config import Config, load
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.radio import Link, TcRadio
from flare.testbed import network
from flare.testbed.moments import FETCHED, SENT, Moment, note
from flare.testbed.task import model_of

CONTROL_BPS = 1e7
"""The rate of a device without a grant: enough for questions and answers without a model."""
_POLL_S = 0.5  # each look for an answer costs the SuperLink milliseconds, which shares the machine with the nodes
app = ServerApp()


@final
class TimedGrid(Grid):
    """Flower's grid, which notes when work goes out to a device, and when its answer is in the server's hands."""

    def __init__(self, grid: Grid, run: str, moments: Path) -> None:
        self._grid, self._run, self._moments = grid, run, moments
        self._asked: dict[str, tuple[int, int]] = {}  # round and device of each message with work

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send out messages."""
        sent = list(messages)
        began = time.time()
        ids = list(self._grid.push_messages(sent))
        for message, message_id in zip(sent, ids, strict=True):
            work = message.content.config_records["config"]
            if message.metadata.message_type == "train" and message_id:
                self._asked[message_id] = (int(work["round"]), int(work["device"]))  # type: ignore[arg-type]
                self._note(SENT, message_id, began)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the answers to messages."""
        answers = list(self._grid.pull_messages(message_ids))
        for answer in answers:
            if answer.metadata.reply_to_message_id in self._asked:
                self._note(FETCHED, answer.metadata.reply_to_message_id, time.time())
        return answers

    def _note(self, what: str, message_id: str, time_s: float) -> None:
        index, device = self._asked[message_id]
        note(self._moments, Moment(what, self._run, index, device, time_s))

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        return self._grid.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Of the grid itself."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def set_run(self, run: object) -> None:
        """Of the grid itself."""
        self._grid.set_run(run)  # type: ignore[arg-type]

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Of the grid itself."""
        return self._grid.create_message(*args, **kwargs)

    @property
    def run(self) -> object:  # type: ignore[override]
        """Of the grid itself."""
        return self._grid.run


def radio_of(config: Config) -> TcRadio:
    """The radio of all devices of a testbed."""
    devices = range(config.wireless.num_devices)
    links = {device: Link(network.UPLINK, network.namespace(device)) for device in devices}
    return TcRadio(links, idle_bps=CONTROL_BPS)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out one run on the testbed."""
    told = {name: str(context.run_config[name]) for name in ("config", "folder", "moments", "run")}
    config = load(told["config"])
    radio = radio_of(config)
    for device in range(config.wireless.num_devices):
        radio.release(device)
    strategy = FlareStrategy(
        config, folder=told["folder"], min_nodes=config.wireless.num_devices, poll_s=_POLL_S, radio=radio
    )
    timed = TimedGrid(grid, told["run"], Path(told["moments"]))
    strategy.start(timed, trained_arrays(model_of(config)), timeout=float(context.run_config["timeout-s"]))
