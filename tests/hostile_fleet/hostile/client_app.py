"""What nodes say and compute; without torch, so that a node is there quickly.

A sound node moves every weight by 0.01 (d + 1), where d is its device. One whose configuration says `does="lies"` or
`does="poisons"` does so in the first rounds, each time in another way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
SOUND = {"tau": 2.0, "cpu_hz": 3e9, "power_w": 0.2, "gain_db": -90.0}
LIES: list[dict[str, float | None]] = [{"tau": math.nan}, {"cpu_hz": -3e9}, {"power_w": 1e30}, {"gain_db": None}]


@app.query()
def query(message: Message, context: Context) -> Message:
    number = message.content.config_records["config"]["round"]
    said: dict[str, float | None] = {**SOUND, "device": float(context.node_config["partition-id"])}
    if context.node_config["does"] == "lies" and number < len(LIES):
        said |= LIES[number]
    known = MetricRecord({name: value for name, value in said.items() if value is not None})
    return Message(RecordDict({"resources": known}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    work = message.content.config_records["config"]
    value = 0.01 * (work["device"] + 1)
    arrays = {"w": np.full((4, 3), value, np.float32), "b": np.full(3, value, np.float32)}
    if context.node_config["does"] == "poisons":
        spoil(arrays, work["round"])
    update = ArrayRecord({name: Array(each) for name, each in arrays.items()})
    told = MetricRecord({"steps": work["steps"], "loss": 1.0, "work_s": 0.0})
    return Message(RecordDict({"arrays": update, "metrics": told}), reply_to=message)


def spoil(arrays: dict[str, np.ndarray[Any, Any]], number: int) -> None:
    """Wrong shape, wrong type, nan, huge, by the round; then sound."""
    if number == 0:
        arrays["b"] = np.ones((3, 1), np.float32)
    elif number == 1:
        arrays["w"] = arrays["w"].astype(np.float64)
    elif number == 2:
        arrays["w"][0, 0] = math.nan
    elif number == 3:
        arrays["w"] *= np.float32(1e30)
