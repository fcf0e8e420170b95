"""How fast the engine for CPUs trains: against a bare PyTorch loop and other simulators, in turn in the same run.

    python benchmarks/training.py [--quick]

writes docs/benchmarks/training.md and .json. A round is 10 of 40 devices x 3 steps of batch 40 on the mnist-cnn, with
the averaging. A simulator takes part where it is installed (`pip install pfl`, `pip install "flwr[simulation]"`).
Ratios are what to read: a round of the peer is followed by one of ours, and times depend on the machine.
"""

# mypy: allow-untyped-calls, allow-subclassing-any, disable-error-code="import-not-found"
# (the peers need not be installed, and torch's backward and split have no types)

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import logging
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Job
from flare.learning.methods import FedAvg, Round
from flare.learning.models import make_model
from flare.rng import stream

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
DEVICES, SELECTED, STEPS, BATCH, LR = 40, 10, 3, 40, 0.005
PER_DEVICE = STEPS * BATCH  # samples a device holds: a round is one pass over them
SHAPE, CLASSES = (1, 28, 28), 10

Pair = tuple[float, float]
"""Seconds of a round of the peer and of the round of ours that follows it."""
Peer = Callable[[int, Callable[[], None]], list[Pair]]
"""Runs so many rounds of a peer, each followed by one of ours."""


def dataset() -> Dataset:
    draw = stream(0, "benchmark")
    x = draw.standard_normal((DEVICES * PER_DEVICE, *SHAPE)).astype(np.float32)
    y = draw.integers(0, CLASSES, len(x))
    return Dataset("random", x, y, x[:0], y[:0], CLASSES)


def model() -> nn.Module:
    return make_model("mnist-cnn", SHAPE, CLASSES, seed=0)


def batches() -> list[np.ndarray[Any, np.dtype[np.intp]]]:
    """The samples of the first devices, each of shape (steps, batch)."""
    return [(i * PER_DEVICE + np.arange(PER_DEVICE)).reshape(STEPS, BATCH) for i in range(SELECTED)]


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def our_round(kind: type[SequentialEngine] | type[ReferenceEngine]) -> Callable[[], None]:
    """A function that does one round of ours: rules, jobs, steps, averaging."""
    module, method = model(), FedAvg()
    engine, weights = kind(module, dataset()), FlatModel(module).flatten()
    selected, tau = np.arange(SELECTED), np.full(DEVICES, float(STEPS))

    def one() -> None:
        nonlocal weights
        now = Round(weights, selected, tau, local_lr=LR, global_lr=1.0)
        rules = method.rules({}, now, None)
        updates = engine.train([Job(weights, rule, each) for rule, each in zip(rules, batches(), strict=True)])
        reducer = method.reducer({}, now)
        for device, rule, update in zip(selected.tolist(), rules, updates, strict=True):
            reducer.add(device, rule, update)
        weights, _ = reducer.end()

    return one


def bare_loop(rounds: int, ours: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> list[Pair]:
    """What one writes without any package: a module, torch.optim.SGD, and a mean of the models."""
    data, module = dataset(), model()
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)

    def one() -> None:
        start = copy.deepcopy(module.state_dict())
        total = {name: torch.zeros_like(each) for name, each in start.items()}
        for each in batches():
            module.load_state_dict(start)
            optimizer = torch.optim.SGD(module.parameters(), lr=LR)
            for batch in torch.from_numpy(each):
                optimizer.zero_grad()
                functional.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
            for name, trained in module.state_dict().items():
                total[name] += trained
        module.load_state_dict({name: each / SELECTED for name, each in total.items()})

    return [(seconds(one, clock), seconds(ours, clock)) for _ in range(rounds)]


class Stopwatch:
    """Splits the time between calls into the peer's round and the round of ours done in the call."""

    def __init__(self, ours: Callable[[], None]) -> None:
        self.ours, self.pairs, self.since = ours, list[Pair](), time.perf_counter()

    def lap(self) -> None:
        peer_s = time.perf_counter() - self.since
        self.pairs.append((peer_s, seconds(self.ours)))
        self.since = time.perf_counter()


class PflModel(nn.Module):
    """The model as pfl-research asks for it: with `loss` and `metrics`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:
        return {}


def pfl_research(rounds: int, ours: Callable[[], None]) -> list[Pair]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset as PflDataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    stopwatch, data, module = Stopwatch(ours), dataset(), PflModel()
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    parts = {
        i: PflDataset((x[i * PER_DEVICE : (i + 1) * PER_DEVICE], y[i * PER_DEVICE : (i + 1) * PER_DEVICE]))
        for i in range(DEVICES)
    }
    turn = iter(range(10**9))
    users = FederatedDataset(parts.__getitem__, lambda: next(turn) % DEVICES)

    class Lap(TrainingProcessCallback):
        def after_central_iteration(self, *arguments: Any, **named: Any) -> tuple[bool, Any]:
            stopwatch.lap()
            return False, Metrics()

    trained = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds + 1, 10**9, SELECTED, None),
        SimulatedBackend(training_data=users, val_data=users),
        trained,
        NNTrainHyperParams(BATCH, 1, LR),
        callbacks=[Lap()],
    )
    return stopwatch.pairs[1:]  # the first round also evaluates


def flower(rounds: int, ours: Callable[[], None]) -> list[Pair]:
    """Flower's server polls in threads that would slow down ours in the same process: it has a process of its own."""
    apart = multiprocessing.get_context("spawn")
    here, there = apart.Pipe()
    process = apart.Process(target=simulate_with_flower, args=(rounds, there))
    process.start()
    there.close()
    pairs = []
    for _ in range(rounds + 2):
        peer_s = here.recv()
        pairs.append((peer_s, seconds(ours)))
        here.send("go on")
    process.join()
    return pairs[2:]  # less the start and the first round, in which workers come up


def simulate_with_flower(rounds: int, other: Connection) -> None:
    """Send the seconds of each round to the other process, and wait for its answer."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
    from flwr.simulation import run_simulation

    def tell() -> None:
        other.send(time.perf_counter() - stopwatch.since)
        other.recv()

    stopwatch = Stopwatch(tell)
    client, server = ClientApp(), ServerApp()
    build = partial(make_model, "mnist-cnn", SHAPE, CLASSES, seed=0)

    def train(message: Message, context: Context) -> Message:
        module = build()
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        x, y = torch.ones(PER_DEVICE, *SHAPE), torch.zeros(PER_DEVICE, dtype=torch.int64)
        for batch_x, batch_y in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(module(batch_x), batch_y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": PER_DEVICE})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def serve(grid: Grid, context: Context) -> None:
        strategy = FlowerFedAvg(
            fraction_train=SELECTED / DEVICES,
            fraction_evaluate=0.0,
            min_train_nodes=SELECTED,
            min_available_nodes=DEVICES,
        )
        strategy.start(
            grid,
            ArrayRecord(model().state_dict()),
            num_rounds=rounds + 1,
            evaluate_fn=lambda now, arrays: stopwatch.lap(),  # called before the first round and after each
        )

    client.train()(train)
    server.main()(serve)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(server, client, DEVICES, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


PEERS: dict[str, tuple[str, Peer]] = {
    "bare PyTorch loop": ("torch", bare_loop),
    "pfl-research": ("pfl", pfl_research),
    "Flower simulation": ("ray", flower),
}
"""Peers by name, each with the module that must be there."""


def compare(rounds: int) -> dict[str, dict[str, float]]:
    rows = {}
    for name, (needed, peer) in PEERS.items():
        if importlib.util.find_spec(needed) is None or (peer is flower and importlib.util.find_spec("flwr") is None):
            print(f"{name}: not installed, skipped", flush=True)
            continue
        print(f"{name}: {rounds} rounds in turn with ours", flush=True)
        rows[name] = summary(peer(rounds, our_round(SequentialEngine)))
        print(f"    ours / peer {rows[name]['ratio']:.3f}", flush=True)
    print("reference engine", flush=True)
    reference = our_round(ReferenceEngine)
    ours = our_round(SequentialEngine)
    rows["our reference engine"] = summary([(seconds(reference), seconds(ours)) for _ in range(rounds)])
    return rows


def on_one_thread(rounds: int) -> dict[str, float]:
    """The bare loop and ours with one thread each, by processor time: other work on the machine enters less."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return summary(bare_loop(rounds, our_round(SequentialEngine), time.process_time))
    finally:
        torch.set_num_threads(before)


def summary(pairs: list[Pair]) -> dict[str, float]:
    """Median seconds of peer and ours, and the median of ours over peer; the first pair warms up."""
    pairs = pairs[1:] or pairs
    return {
        "peer_s": statistics.median(peer_s for peer_s, _ in pairs),
        "ours_s": statistics.median(ours_s for _, ours_s in pairs),
        "ratio": statistics.median(ours_s / peer_s for peer_s, ours_s in pairs),
        "rounds": len(pairs),
    }


def report(results: dict[str, Any]) -> str:
    lines = [
        "# Training on a CPU: measured",
        "",
        "Made by `python benchmarks/training.py`; the numbers are in `training.json`. "
        f"Machine: {results['machine']}. A round: {SELECTED} of {DEVICES} devices x {STEPS} steps of batch {BATCH} on "
        "the mnist-cnn, averaging included; a round of the peer, then one of ours (engine `sequential`), in turn.",
        "",
        "| peer | its round | ours | ours / peer |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in results["peers"].items():
        lines.append(f"| {name} | {1e3 * row['peer_s']:.0f} ms | {1e3 * row['ours_s']:.0f} ms | {row['ratio']:.3f} |")
    row = results["one_thread"]
    return "\n".join(
        [
            *lines,
            "",
            "Times are medians, the last column the median of the ratios of neighbours.",
            "",
            f"With one thread each a round takes {1e3 * row['peer_s']:.0f} ms of processor time in the bare loop and "
            f"{1e3 * row['ours_s']:.0f} ms in ours, ratio {row['ratio']:.3f}: what is left where the machine has other "
            "work, and where ours cannot gain by one device for each core.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two rounds, as a check that everything runs")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each peer (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rounds = 2 if arguments.quick else arguments.rounds
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch threads: {torch.get_num_threads()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}",
        "peers": compare(rounds),
        "one_thread": on_one_thread(rounds),
    }
    (arguments.out / "training.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "training.md").write_text(report(results))
    print((arguments.out / "training.md").read_text())


if __name__ == "__main__":
    main()
