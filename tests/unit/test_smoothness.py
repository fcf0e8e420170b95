"""gamma by the estimated L, and tau_bar up to what the condition on the step size allows."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flare.config import Config, SchedulingConfig, load, override, to_toml
from flare.data.dataset import Dataset
from flare.learning.methods import Flare, Round
from flare.records import RunFolder
from flare.simulation import Member, RoundRecord, Simulation, drive, resume, smoothness
from flare.theory import Constants, Rates, lemma_1
from tests.driving import followed

SMALL = (
    "wireless.num_devices=6",
    "wireless.deadline_s=1.0",
    "wireless.batch_size=10",
    "learning.model=logistic",
    "learning.device=cpu",
    "run.payload=wireless",
    "run.rounds=4",
    "run.evaluate_every=2",
)


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def records_of(*configs: Config) -> list[list[RoundRecord]]:
    return followed([Member(Simulation(config)) for config in configs])


def one_device() -> tuple[Dataset, list[np.ndarray], nn.Module]:
    """Two features, two classes, all weights zero: the Hessian is known."""
    x = np.array([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, -1.0]], dtype=np.float32)
    y = np.array([0, 0, 1, 1])
    module = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(module.weight)
    return Dataset("four", x, y, x, y, num_classes=2), [np.arange(4), np.array([1, 3])], module


def test_l_is_the_greatest_curvature_of_any_device_at_the_start() -> None:
    # At w = 0: (I/2 - 11^T/4) (x) X^T X / n, the left with greatest eigenvalue 1/2; X^T X / 4 = diag(4.5, 0.5), and
    # for the second device diag(0, 1).
    dataset, held, module = one_device()
    config = small("wireless.num_devices=2", "scheduling.gamma=auto", "learning.global_lr=0.9")
    simulation = Simulation(config, dataset=dataset, held=held, module=module)
    assert simulation.station.smoothness == pytest.approx(2.25, rel=0.01)
    plan = simulation.plan(simulation.start())
    assert plan.problem.gamma == pytest.approx(0.4, rel=0.01)
    assert plan.problem.gamma == 0.9 / simulation.station.smoothness


def test_auto_lr_weighs_participation_as_lemma_1_does() -> None:
    dataset, held, module = one_device()
    steps = ["wireless.num_devices=2", "wireless.tau_law=list", "wireless.tau_values=[2, 5]"]
    config = small(*steps, "scheduling.gamma=auto-lr", "learning.local_lr=0.01")
    simulation = Simulation(config, dataset=dataset, held=held, module=module)
    assert simulation.station.smoothness is not None
    gamma = simulation.plan(simulation.start()).problem.gamma
    assert gamma == pytest.approx(1.0 / (2.25 * 0.01 * 5.0), rel=0.01)
    # phi_2 of Lemma 1 over P2's objective is the same for every selection.
    constants = Constants(simulation.station.smoothness, sigma_sq=1.0, g_const=0.0, rho=10.0)
    ratios = [
        lemma_1(Rates(0.01, 1.0, 5.0), tau, constants, 1.0).phi_2
        / ((1 / len(tau) + gamma / len(tau) ** 2) * sum(1 / each for each in tau))
        for tau in ([5], [2, 5], [1, 1, 5])
    ]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-12)


def test_l_is_estimated_only_where_a_setting_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Simulation(small()).station.smoothness is None
    assert Simulation(small("learning.method=fedavg")).station.smoothness is None

    def never(*_: object, **__: object) -> float:
        raise AssertionError("estimated")

    monkeypatch.setattr(smoothness, "smoothness", never)
    Simulation(small())
    for setting in ("scheduling.gamma=auto", "learning.options.tau_bar=safe"):
        with pytest.raises(AssertionError, match="estimated"):
            Simulation(small(setting))


def test_only_the_last_estimates_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothness, "_ESTIMATES", OrderedDict())
    monkeypatch.setattr(smoothness, "MAX_ESTIMATES", 2)
    estimated: list[int] = []
    monkeypatch.setattr(smoothness, "_estimate", lambda config, *_: float(estimated.append(config.seed) or 1.0))
    for seed in (0, 1, 0, 2, 0, 1):
        Simulation(small("scheduling.gamma=auto", f"seed={seed}"))
    assert estimated == [0, 1, 2, 1]  # 0 was asked for again and again, 1 had to go for 2


def test_a_device_with_many_samples_is_judged_by_some(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = smoothness.smoothness

    def watched(loss, points, devices, **options):  # type: ignore[no-untyped-def]
        seen.extend(len(each) for each in devices)
        return real(loss, points, devices, **options)

    monkeypatch.setattr(smoothness, "smoothness", watched)
    Simulation(small("scheduling.gamma=auto"))  # 1437 samples among 6 devices
    assert seen == [smoothness.MAX_SAMPLES] * 6


def test_a_loss_without_curvature_leaves_no_gamma() -> None:
    dataset, held, _ = one_device()
    dead = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    nn.init.constant_(dead[0].weight, 0.0)
    nn.init.constant_(dead[0].bias, -1.0)  # behind the ReLU nothing moves
    nn.init.zeros_(dead[2].weight)
    dead[2].bias.requires_grad_(False)
    simulation = Simulation(
        small("wireless.num_devices=2", "scheduling.gamma=auto"), dataset=dataset, held=held, module=dead
    )
    with pytest.raises(ValueError, match=r'gamma is "auto", but the loss has no curvature .* set gamma to a number'):
        simulation.plan(simulation.start())


def test_a_start_that_is_not_finite_is_refused() -> None:
    dataset, held, module = one_device()
    nn.init.constant_(module.weight, math.nan)
    config = small("wireless.num_devices=2", "learning.options.tau_bar=safe")
    with pytest.raises(ValueError, match="Hessian of the loss is not finite"):
        Simulation(config, dataset=dataset, held=held, module=module)


def test_safe_is_mas_up_to_the_limit_of_the_round() -> None:
    tau = np.array([9.0, 2.0, 5.0])
    method, state = Flare("safe"), Flare("safe").start(1, 3)
    for limit, expected in ((math.inf, 5.0), (5.0, 5.0), (3.25, 3.25), (0.4, 0.4)):
        now = Round(torch.zeros(1), np.array([1, 2]), tau, local_lr=0.1, global_lr=1.0, tau_bar_limit=limit)
        assert method.reference_steps(state, now) == expected
        rates = [rule.lr for rule in method.rules(state, now, None)]
        assert rates == pytest.approx([0.1 * expected / 2.0, 0.1 * expected / 5.0], rel=1e-15)


def test_safe_keeps_the_condition_in_every_round_and_is_mas_where_mas_does() -> None:
    for local_lr in (1e-4, 0.05, 5.0):
        settings = [f"learning.local_lr={local_lr}", "run.rounds=6"]
        mas, safe = records_of(small(*settings), small(*settings, "learning.options.tau_bar=safe"))
        for one, other in zip(mas, safe, strict=True):
            assert other.tau_bar == min(one.tau_bar, 0.58 / (other.smoothness * local_lr))
            assert other.smoothness * local_lr * other.tau_bar <= 0.58 * (1.0 + 1e-12)
        if local_lr == 1e-4:  # nothing to limit: the same run
            assert [replace(record, smoothness=None) for record in safe] == mas


def test_safe_trains_at_a_rate_at_which_mas_does_not() -> None:
    settings = ["learning.local_lr=2.0", "learning.model=mlp", "run.rounds=20", "data.partition=shards"]
    mas, safe = records_of(small(*settings), small(*settings, "learning.options.tau_bar=safe"))
    assert mas[-1].test_accuracy < 0.3
    assert safe[-1].test_accuracy > 0.5


BOTH = ("scheduling.gamma=auto", "learning.options.tau_bar=safe", "learning.local_lr=0.5", "data.partition=shards")


def test_what_was_used_is_recorded() -> None:
    plain, both = records_of(small(), small(*BOTH))
    assert {(record.gamma, record.smoothness) for record in plain} == {(10.0, None)}
    ((gamma, found),) = {(record.gamma, record.smoothness) for record in both}
    assert gamma == 1.0 / found


def test_the_same_numbers_alone_in_company_and_on_any_number_of_threads() -> None:
    (alone,) = records_of(small(*BOTH))
    _, together, _ = records_of(small("seed=5", *BOTH), small(*BOTH), small("run.rounds=2"))
    assert together == alone
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert Simulation(small(*BOTH)).station.smoothness == alone[0].smoothness
    finally:
        torch.set_num_threads(before)
    assert Simulation(small("seed=5", *BOTH)).station.smoothness != alone[0].smoothness


@pytest.mark.parametrize("gamma", ["auto", "auto-lr"])
def test_a_resumed_run_is_the_run_never_interrupted(tmp_path: Path, gamma: str) -> None:
    config = small(*BOTH, f"scheduling.gamma={gamma}", "run.checkpoint_every=1")
    whole = Member(Simulation(config), RunFolder.create(tmp_path / "whole", config))
    drive([whole])
    cut = Member(Simulation(config), RunFolder.create(tmp_path / "cut", config))
    turns = itertools.count()
    drive([cut], stopping=lambda: next(turns) >= 2)
    assert cut.folder is not None
    cut.folder.close()
    folder = RunFolder.open(tmp_path / "cut")
    assert folder.config == config
    again = Member(Simulation(folder.config), folder)
    resume(again)
    assert again.state.rounds_done == 2
    drive([again])
    assert torch.equal(again.state.weights, whole.state.weights)
    assert whole.folder is not None
    for one, other in zip(whole.folder.records(), folder.records(), strict=True):
        assert one | {"wall_s": 0} == other | {"wall_s": 0}


def test_a_module_and_its_random_state_are_left_alone() -> None:
    dataset, held, module = one_device()
    before, state = module.weight.detach().clone(), torch.get_rng_state()
    config = small("wireless.num_devices=2", "learning.options.tau_bar=safe")
    smoothness.estimated_smoothness(config, Flare("safe"), module, dataset, held)
    assert torch.equal(module.weight, before)
    assert module.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("gamma", ["auto", "auto-lr", 3.5])
def test_gamma_is_read_written_and_overridden(tmp_path: Path, gamma: float | str) -> None:
    config = override(Config(), [f"scheduling.gamma={gamma}"])
    assert config.scheduling.gamma == gamma
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert load(tmp_path / "run.toml") == config


@pytest.mark.parametrize("given", ["Auto", "automatic", "", True, -1.0, math.inf, [1.0]])
def test_a_wrong_gamma_is_told_what_is_allowed(given: object) -> None:
    allowed = r'must be a finite number, at least 0, or one of "auto", "auto-lr"'
    with pytest.raises(ValueError, match=rf"^scheduling\.gamma is .*; it {allowed}$"):
        SchedulingConfig(gamma=given)  # type: ignore[arg-type]


def test_ps_is_tuned_with_the_gamma_of_the_run() -> None:
    assert (
        Simulation(small("scheduling.policy=ps", "scheduling.gamma=auto")).station.policy_options["num_selected"] >= 1
    )
