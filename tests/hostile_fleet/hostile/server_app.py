"""A model of two small arrays, trained by whoever is sound."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flare.flower import FlareStrategy, from_run_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    said = context.run_config
    strategy = FlareStrategy(
        from_run_config(said),
        folder=str(said["folder"]),
        patience=int(said["patience"]),
        min_nodes=int(said["min-nodes"]),
        poll_s=0.8,  # every look at every node keeps a SuperLink busy
    )
    first = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(3, np.float32)}
    arrays = ArrayRecord({name: Array(each) for name, each in first.items()})
    strategy.start(grid, arrays, timeout=float(said["timeout-s"]))
