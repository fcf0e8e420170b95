"""Run folders as a simulation writes them, with made-up numbers: for tests of what reads them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flare.config import Config, DataConfig, LearningConfig, RunConfig, SchedulingConfig, WirelessConfig
from flare.learning.methods import METHODS
from flare.records import RunFolder
from flare.rng import stream
from flare.rounds import RoundRecord


def settings(policy: str = "greedy", method: str = "flare", seed: int = 0, **changes: Any) -> Config:
    """A configuration; keyword arguments go to the section that has them, or to the options of the method."""
    kinds: dict[str, type[Any]] = {
        "wireless": WirelessConfig, "scheduling": SchedulingConfig, "data": DataConfig,
        "learning": LearningConfig, "run": RunConfig,
    }  # fmt: skip
    given = {"policy": policy, "method": method, **changes}
    names = {name: {each.name for each in fields(kind)} for name, kind in kinds.items()}
    names["learning"] -= {"options"}  # those of the policy
    names["data"] -= {"options"}
    known = METHODS[method].options if method in METHODS else {}
    of_method = {key: given.pop(key) for key in changes if key in known}
    assert set(given) <= set.union(*names.values())
    sections = {
        name: kind(**{key: value for key, value in given.items() if key in names[name]}) for name, kind in kinds.items()
    }
    sections["learning"] = replace(sections["learning"], options=of_method)
    return Config(seed=seed, **sections)


def write_run(
    folder: Path,
    config: Config,
    *,
    rounds: int = 20,
    final_accuracy: float = 0.9,
    bound: bool = True,
    diverge_at: int | None = None,
    infeasible: Collection[int] = (),
    tests: bool = True,
    status: str = "finished",
    identity: Mapping[str, str] | None = None,
    faults: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    wall_s: float | None = 0.1,
) -> Path:
    """A run of so many rounds. At `diverge_at` nothing is a number any more, and the run ends.

    `faults` has for a round when a node failed and why, for each that did.
    """
    last = rounds - 1 if diverge_at is None else diverge_at
    clock_s = 0.0
    with RunFolder.create(folder, config, identity=identity) as run:
        for round_ in range(last + 1):
            tested = tests and ((round_ + 1) % config.run.evaluate_every == 0 or round_ == last)
            record = _round(config, round_, nobody=round_ in infeasible, bound=bound)
            clock_s += record["deadline_s"] if record["latency_s"] is None else record["latency_s"]
            lost = round_ in infeasible or round_ == diverge_at
            record |= {"clock_s": clock_s, **_learned(config, round_, final_accuracy, tested=tested, lost=lost)}
            failed = [{"node": "7", "when": when, "why": why} for when, why in (faults or {}).get(round_, ())]
            run.append(RoundRecord(**record, faults=failed, wall_s=wall_s).to_json())
        if status != "running":
            run.finish(status if diverge_at is None else "diverged", rounds=last + 1, clock_s=clock_s)
    return folder


def _round(config: Config, round_: int, *, nobody: bool, bound: bool) -> dict[str, Any]:
    draw = stream(config.seed, "made-up round", config.scheduling.policy, round_)
    devices, deadline_s = config.wireless.num_devices, config.wireless.deadline_s
    weights = 1.0 / (1.0 + stream(config.seed, "favour").permutation(devices))
    number = 0 if nobody else int(draw.integers(1, max(2, min(devices, 20))))
    selected = sorted(draw.choice(devices, number, replace=False, p=weights / weights.sum()).tolist())
    tau = [max(1, round(value)) for value in draw.exponential(3.0, number)]
    latency_s = deadline_s * draw.uniform(0.8, 1.0)
    compute_s = [min(0.5, 0.03 * steps) * latency_s for steps in tau]
    late = 0.9 if config.scheduling.policy == "dm" else 1.0  # an even split: some finish early
    objective = 10.0 / number + sum(1.0 / steps for steps in tau) / number if number else None
    scaled = config.learning.method in ("flare", "fedlin")
    proven = config.scheduling.policy == "exact"
    return {
        "round": round_,
        "status": "infeasible" if nobody else "optimal" if proven else "feasible",
        "available": devices,
        "selected": selected,
        "tau": tau,
        "tau_bar": max(tau, default=None),
        "lr": [config.learning.local_lr * (max(tau) / steps if scaled else 1.0) for steps in tau],
        "bandwidth_hz": [config.wireless.total_bandwidth_hz / number for _ in tau],
        "compute_s": compute_s,
        "upload_s": [(latency_s - each_s) * late for each_s in compute_s],
        "latency_s": latency_s if number else None,
        "deadline_s": deadline_s,
        "gamma": 10.0,
        "smoothness": None,
        "compute_energy_j": [0.02 * steps for steps in tau],
        "upload_energy_j": [0.1 * (latency_s - each_s) for each_s in compute_s],
        "objective": objective,
        "sent": selected,
        "loss": [None] * number,
        "update_norm": [None] * number,
        "payload_bits": [1e7] * number,
        "lower_bound": objective / (1.0 if proven else draw.uniform(1.0, 1.2)) if bound and objective else None,
    }


def _learned(config: Config, round_: int, final_accuracy: float, *, tested: bool, lost: bool) -> dict[str, Any]:
    draw = stream(config.seed, "made-up learning", config.scheduling.policy, round_)
    luck = 0.01 * stream(config.seed, "luck", config.scheduling.policy).normal()
    accuracy = final_accuracy + luck - (final_accuracy - 0.1) * math.exp(-(round_ + 1) / 15.0)
    accuracy = min(1.0, max(0.0, accuracy + 0.005 * draw.normal()))
    loss = 2.3 * math.exp(-round_ / 25.0) + 0.2 + 0.05 * draw.random()
    return {
        "train_loss": None if lost else loss,
        "test_accuracy": accuracy if tested and not lost else None,
        "test_loss": 1.1 * loss if tested and not lost else None,
    }
