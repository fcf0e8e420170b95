"""FLARE on Flower: scheduling by deadline and bandwidth, exact resume and checked answers, on Flower's own engine.

    strategy = FlareStrategy(config, folder="out/fleet")            # in the ServerApp
    app = client_app(model=..., batches=..., train_step=...)        # in the ClientApp

The scheduling, the learning and the run folder are those of the simulator. Needs the extra `flower`.
"""

from __future__ import annotations

import os

from flare.extras import how_to_install

# For programs that start Flower or Ray themselves: nothing is sent out unless the user has said so. Flower's own
# commands have started before this is read; docs/flower.md says how to silence them.
for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)

try:
    import flwr  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        f"flare.flower needs Flower, which is not installed: {how_to_install('flower')}", name="flwr"
    ) from None

from flare.flower.arrays import load_arrays, trained_arrays  # noqa: E402
from flare.flower.client import client_app  # noqa: E402
from flare.flower.device import Ask, cell_resources, own_resources  # noqa: E402
from flare.flower.evaluation import classifier_score  # noqa: E402
from flare.flower.settings import from_run_config  # noqa: E402
from flare.flower.speed import Speed  # noqa: E402
from flare.flower.stepping import Work, sgd_step  # noqa: E402
from flare.flower.strategy import FlareStrategy  # noqa: E402

__all__ = [
    "Ask",
    "FlareStrategy",
    "Speed",
    "Work",
    "cell_resources",
    "classifier_score",
    "client_app",
    "from_run_config",
    "load_arrays",
    "own_resources",
    "sgd_step",
    "trained_arrays",
]
