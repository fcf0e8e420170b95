"""What runs on every node."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Context

from flare.flower import Ask, cell_resources, classifier_score, client_app, from_run_config, own_resources
from flare.wireless.cell import Cell
from fleet import task


def resources(context: Context, ask: Ask) -> Mapping[str, float]:
    """What this device can do: modelled, or its own."""
    if not context.run_config["modelled"]:
        return own_resources(context, ask)
    config = from_run_config(context.run_config)
    return cell_resources(Cell(config.wireless, config.seed), context, ask)


app = client_app(
    model=lambda context: task.model(from_run_config(context.run_config)),
    batches=lambda context, work: task.batches(from_run_config(context.run_config), work),
    resources=resources,
    all_batches=lambda context: task.all_batches(
        from_run_config(context.run_config), int(context.node_config["partition-id"])
    ),
    evaluate=lambda context, module: classifier_score(
        module, task.test_batches(from_run_config(context.run_config), int(context.node_config["partition-id"]))
    ),
)
