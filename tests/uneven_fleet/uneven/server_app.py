"""A round on three nodes."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from flare.flower import FlareStrategy, from_run_config, trained_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    said = context.run_config
    strategy = FlareStrategy(from_run_config(said), folder=str(said["folder"]), min_nodes=3)
    strategy.start(grid, trained_arrays(nn.Linear(1000, 250, bias=False)), timeout=float(said["timeout-s"]))
