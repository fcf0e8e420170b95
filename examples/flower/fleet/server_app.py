"""What runs beside the SuperLink."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flare.flower import FlareStrategy, from_run_config, trained_arrays
from fleet import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or continue the run in the folder."""
    said = context.run_config
    config = task.named(from_run_config(said))
    strategy = FlareStrategy(config, folder=str(said["folder"]) or None, min_nodes=int(said["min-nodes"]))
    strategy.start(
        grid,
        trained_arrays(task.model(config)),
        timeout=float(said["timeout-s"]),
        evaluate_fn=lambda _, arrays: task.score(config, arrays),
    )
