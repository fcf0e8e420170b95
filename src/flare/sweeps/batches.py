"""Which runs go in lockstep: those of one model, the costliest batch first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flare.config import OTA, Config
from flare.learning.engine import compute_device
from flare.sweeps.task import Place, Task, placed

_MAX_ON_GPU, _MAX_ON_CPU = 80, 16  # runs in a batch: a GPU wants many devices at once; all their models are in memory
_MAX_LARGE = 240  # of the network for CIFAR-10 in all processes together: 264 filled the memory of an H200
_WEIGHTS = {"cifar-cnn": 3.0, "mnist-cnn": 1.0}  # of a round, against that of mnist-cnn
_SMALL_MODEL, _NOT_TRAINED = 0.1, 0.02
_BITS_PER_S = 1.3e8  # about what all devices of a cell together send


def expected_rounds(config: Config) -> float:
    """About how many rounds a run has."""
    run = config.run
    return min(float(run.rounds), run.seconds / config.wireless.deadline_s if run.seconds else float("inf"))


def batches(tasks: Sequence[Task], place: Place) -> list[list[Task]]:
    """Lockstep groups, the costliest first. The runs of a kind are dealt out in turns, as few as memory allows: in each
    at most one group to a process, and groups that differ by one run at most, so that they end at about the same time.
    A process may get none: 9 runs on 4 processes are 3 groups of 3."""
    kinds: dict[tuple[object, ...], list[Task]] = {}
    for task in tasks:
        kinds.setdefault((task.trained, task.config.data.name, task.config.learning.model), []).append(task)
    made = []
    for kind in kinds.values():
        kind.sort(key=cost, reverse=True)
        on_gpu = (place.device or compute_device(placed(kind[0], place).learning)) == "cuda"
        processes = place.num_processes
        largest = _max_on_gpu(kind[0], processes) if on_gpu else _MAX_ON_CPU
        in_turn = -(-len(kind) // -(-len(kind) // (largest * processes)))  # runs of all processes at a time
        for begin in range(0, len(kind), in_turn):
            turn = kind[begin : begin + in_turn]
            count = -(-len(turn) // -(-len(turn) // processes))
            made += _dealt(turn, count)
    return sorted(made, key=lambda batch: sum(map(cost, batch)), reverse=True)


def _max_on_gpu(task: Task, processes: int) -> int:
    """How many runs like this one are in a batch at most, where so many processes share a GPU."""
    together = _MAX_LARGE if task.config.learning.model == "cifar-cnn" else _MAX_ON_GPU * processes
    return min(_MAX_ON_GPU, max(1, together // processes))


def _dealt(turn: Sequence[Task], count: int) -> list[list[Task]]:
    """Runs dealt out in rounds, one to each group: each goes to the group, of those that have none of this round yet,
    with the fewest runs of its policy; of several such, to that with the fewest of its seed. How many devices train
    depends on both, on the policy more. Shares are even only roughly: the last run of a round has no choice."""
    groups: list[list[Task]] = [[] for _ in range(count)]
    held: list[Counter[object]] = [Counter() for _ in range(count)]  # by group: runs with a policy, and with a seed
    for begin in range(0, len(turn), count):
        free = list(range(count))
        for task in turn[begin : begin + count]:
            policy, seed = (task.config.scheduling, cost(task)), task.config.seed
            to = min(free, key=lambda group: (held[group][policy], held[group][seed]))
            free.remove(to)
            groups[to].append(task)
            held[to].update((policy, seed))
    return groups


def cost(task: Task) -> float:
    """A rough measure of the work in a run, to deal the long ones out first."""
    wireless = task.config.wireless
    share = min(1.0, wireless.deadline_s * _BITS_PER_S / wireless.payload_bits / wireless.num_devices)
    if task.config.uplink.air == OTA:  # the band is not divided
        share = 1.0
    weight = _WEIGHTS.get(task.config.learning.model, _SMALL_MODEL) if task.trained else _NOT_TRAINED
    return expected_rounds(task.config) * weight * (0.3 + share)
