"""Data that all devices share: what is taken from whom, what it costs, and what the warm-up makes of a model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flare.config import Config, DataConfig, override
from flare.data import Dataset, from_arrays
from flare.data.partition import partition
from flare.data.shared import part_size, sample_bits, share
from flare.data.sources import load_divided
from flare.flower import FlareStrategy
from flare.learning.engine.threads import one_thread
from flare.records import RunFolder
from flare.records.run import read_run, run_of
from flare.report.curves import summarise
from flare.report.paired import ranked_groups
from flare.report.run_words import headline
from flare.rng import stream
from flare.rounds import RoundRecord
from flare.simulation import Member, Simulation, drive, resume
from flare.simulation.sharing import download_of
from tests.driving import followed
from tests.hostile import flare as command

CPU = torch.device("cpu")
SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=3", "run.evaluate_every=2", "data.partition=shards",
)  # fmt: skip
SHARING = ("data.shared_fraction=0.1", "data.shared_part=0.5", "data.warm_up_epochs=2")


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def two_labels(samples: int = 24) -> Dataset:
    """Half of the samples of each label, one after the other."""
    x = np.arange(2.0 * samples).reshape(samples, 2) / samples
    y = np.arange(samples) % 2
    return from_arrays(x, y, x[:4], y[:4])


def halves(samples: int = 24) -> list[np.ndarray]:
    """Two devices, each with one half."""
    return list(np.split(np.arange(samples), 2))


# --- who holds what -----------------------------------------------------------------------------------------------


def test_g_is_beta_of_what_devices_still_hold_and_even_over_the_labels() -> None:
    """24 samples, beta 1/5: |G| / (24 - |G|) = 1/5 where |G| = 4, two of each label; alpha 1/2: two for each device."""
    data = two_labels()
    held, shared = share(DataConfig(shared_fraction=0.2, shared_part=0.5), data, halves(), seed=3)
    assert len(shared) == 4
    assert np.bincount(data.train_y[shared]).tolist() == [2, 2]
    own = [np.setdiff1d(each, shared) for each in held]
    assert sum(map(len, own)) == 20
    for before, samples, without in zip(halves(), held, own, strict=True):
        np.testing.assert_array_equal(without, np.setdiff1d(before, shared))
        assert len(samples) == len(without) + 2
        assert np.isin(samples, np.concatenate([before, shared])).all()
        assert (np.diff(samples) > 0).all()


def test_the_papers_numbers_come_out() -> None:
    """50,000 samples of ten labels, of which G is 25 % of the 40,000 that devices hold: 10,000."""
    y = np.repeat(np.arange(10), 5000)
    data = replace(two_labels(), train_x=np.zeros((50_000, 1), np.float32), train_y=y, num_classes=10)
    held, shared = share(DataConfig(shared_fraction=0.25), data, np.split(np.arange(50_000), 10), seed=0)
    assert len(shared) == 10_000
    assert len(np.setdiff1d(np.concatenate(held), shared)) == 40_000
    assert all(np.isin(shared, each).all() for each in held)  # alpha 1: all of it
    assert part_size(DataConfig(shared_part=0.1), 10_000) == 1000
    assert part_size(DataConfig(shared_part=1e-6), 10_000) == 1


def test_parts_differ_from_device_to_device_and_seeds_give_others() -> None:
    config = DataConfig(shared_fraction=0.3, shared_part=0.5)
    (held, shared), (again, same), (_, other) = (share(config, two_labels(96), halves(96), seed=s) for s in (1, 1, 2))
    parts = [set(np.intersect1d(each, shared).tolist()) for each in held]
    assert parts[0] != parts[1]
    np.testing.assert_array_equal(shared, same)
    assert all(np.array_equal(one, two) for one, two in zip(held, again, strict=True))
    assert not np.array_equal(shared, other)


def test_no_device_loses_its_last_sample() -> None:
    data = two_labels()
    lonely = [np.array([k]) for k in range(8)] + [np.arange(8, 24)]
    for seed in range(5):
        held, shared = share(DataConfig(shared_fraction=0.5, shared_part=0.2), data, lonely, seed=seed)
        assert len(shared) == 8
        assert all(len(np.setdiff1d(each, shared)) >= 1 for each in held)


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        (0.01, "less than one sample of each of the 2 labels; set it to 0.091 or more"),  # 2 of 24: 2 / 22
        (1.0, "takes 6 samples of each label, but of label 1 there are 3 that devices can do without; set it to 0.333"),
    ],
)
def test_a_fraction_that_cannot_be_is_refused_with_one_that_can(fraction: float, said: str) -> None:
    """Label 0 has 20 samples, label 1 four, of which one is the only sample of a device."""
    data = two_labels()
    data = replace(data, train_y=np.array([0] * 20 + [1] * 4))
    held = [np.arange(23), np.array([23])]
    with pytest.raises(ValueError, match=said):
        share(DataConfig(shared_fraction=fraction), data, held, seed=0)


def test_nothing_shared_changes_nothing() -> None:
    plain, others = (Member(Simulation(small(*more))) for more in ((), ("data.shared_part=0.5", *SHARING[2:])))
    assert all(np.array_equal(a, b) for a, b in zip(plain.simulation.held, others.simulation.held, strict=True))
    assert plain.simulation.identity == others.simulation.identity
    assert "shared" not in plain.simulation.identity
    one, other = followed([plain]), followed([others])
    assert one == other
    assert (one[0][0].shared_s, one[0][0].shared_bits) == (0.0, 0.0)
    assert torch.equal(plain.state.weights, others.state.weights)


def test_every_reader_of_the_data_sees_what_devices_hold() -> None:
    config = small(*SHARING, "data.share_labels=true")
    simulation = Simulation(config)
    dataset, held = load_divided(config.data, num_devices=6, seed=0)
    assert all(np.array_equal(one, two) for one, two in zip(simulation.held, held, strict=True))
    # 1437 training digits: 0.1 / 1.1 of them are 13.06 of each label; each device gets 65 of the 130.
    assert len(simulation.shared) == 130
    before = partition(config.data, dataset, 6, rng=stream(0, "partition"))
    lost = [int(np.isin(each, simulation.shared).sum()) for each in before]
    assert sum(lost) == 130
    expected = [len(each) - gone + 65 for each, gone in zip(before, lost, strict=True)]
    assert simulation.num_samples.tolist() == expected
    assert simulation.label_counts is not None
    assert simulation.label_counts.sum(axis=1).tolist() == expected
    identity = Simulation(small()).identity
    assert {part for part in simulation.identity if simulation.identity[part] != identity.get(part)} == {
        *("division", "shared")
    }


def test_data_of_ones_own_are_shared_too() -> None:
    config = override(Config(), ["wireless.num_devices=2", "data.shared_fraction=0.2", "data.shared_part=0.5"])
    simulation = Simulation(config, dataset=two_labels(), held=halves(), module=nn.Linear(2, 2))
    assert [len(each) for each in simulation.held] == [12 - own + 2 for own in taken(simulation)]
    assert simulation.download.bits == 4 * (2 * 32 + 1)


def taken(simulation: Simulation) -> list[int]:
    """How many samples of each half were taken out."""
    return [int(np.isin(each, simulation.shared).sum()) for each in halves()]


# --- the clock ----------------------------------------------------------------------------------------------------


def test_bits_of_a_sample() -> None:
    def of(shape: tuple[int, ...], classes: int) -> int:
        return sample_bits(replace(two_labels(), train_x=np.zeros((1, *shape), np.float32), num_classes=classes))

    assert of((1, 28, 28), 10) == 6272 + 4  # MNIST: pixels of 8 bits, labels 0 to 9
    assert of((3, 32, 32), 10) == 24_576 + 4
    assert of((60,), 10) == 60 * 32 + 4
    assert of((5,), 2) == 161
    assert of((5,), 257) == 169


def test_the_download_comes_before_the_first_round_and_is_on_the_clock_once() -> None:
    """All of G at the rate of the weakest device: b log2(1 + P h^2 / (b N0)) on the whole band, 10 MHz and 10 W."""
    config = small(*SHARING)
    (records,), (plain,) = (followed([Member(Simulation(each))]) for each in (config, small()))
    seen = Simulation(config).observe(0)
    weakest_hz = float((seen.snr_hz / seen.power_w).min()) * 10.0
    bits = 130 * (64 * 8 + 4)
    lasts_s = bits / (1e7 * math.log2(1.0 + weakest_hz / 1e7))
    assert records[0].shared_bits == bits
    assert records[0].shared_s == pytest.approx(lasts_s, rel=1e-12)
    assert records[0].latency_s == plain[0].latency_s  # the radio and the schedules are the same
    assert records[0].clock_s == pytest.approx(lasts_s + plain[0].clock_s, rel=1e-12)
    assert [each.shared_s for each in records[1:]] == [0.0, 0.0]
    assert records[2].clock_s == pytest.approx(lasts_s + plain[2].clock_s, rel=1e-12)
    assert RoundRecord.from_json(records[0].to_json()) == records[0]
    split_s = run_of(records, config, {}, None).round_split_s()
    assert split_s[1] == pytest.approx(lasts_s / 3.0)
    assert split_s.sum() == pytest.approx(records[2].clock_s / 3.0)


def test_small_parts_are_sent_to_one_device_after_another() -> None:
    """With three of 130 samples for each of 6 devices, 18 in all are sent instead of 130."""
    config = small("data.shared_fraction=0.1", "data.shared_part=0.02")
    simulation = Simulation(config)
    seen = simulation.observe(0)
    heard_hz = 10.0 * seen.snr_hz / seen.power_w
    each_s = [3 * 516 / (1e7 * math.log2(1.0 + hz / 1e7)) for hz in heard_hz]
    assert simulation.download.bits == 18 * 516
    assert simulation.download.lasts_s == pytest.approx(sum(each_s), rel=1e-12)
    mute = replace(seen, snr_hz=np.where(np.arange(6) == 4, 0.0, seen.snr_hz))
    with pytest.raises(ValueError, match=r"would never reach device 4.*downlink_power_dbm"):
        download_of(config, simulation.dataset, simulation.shared, mute)


def test_rounds_that_are_only_planned_are_charged_the_download_too() -> None:
    simulation = Simulation(small(*SHARING))
    state = simulation.start()
    after, record = simulation.untrained(state, simulation.plan(state))
    assert record.shared_s == simulation.download.lasts_s > 0.0
    assert after.clock_s == record.clock_s > record.shared_s


def test_records_of_older_versions_had_none() -> None:
    told = followed([Member(Simulation(small("run.rounds=1")))])[0][0].to_json()
    del told["shared_s"], told["shared_bits"]
    assert RoundRecord.from_json(told).shared_s == 0.0


# --- the warm-up --------------------------------------------------------------------------------------------------


def test_one_step_over_all_of_g_by_hand() -> None:
    """A linear model of zeros says 1/2 to both labels: the gradient of its loss at sample x is (1/2 - y) x."""
    settings = ("wireless.num_devices=2", "data.shared_fraction=0.2", "data.warm_up_epochs=1", "learning.device=cpu",
                "wireless.batch_size=4", "learning.local_lr=0.3", "wireless.deadline_s=0.001")  # fmt: skip
    module = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(module.weight)
    data = two_labels()
    simulation = Simulation(override(Config(), settings), dataset=data, held=halves(), module=module)
    member = Member(simulation)
    drive([member], stopping=lambda: True)
    x, y = data.train_x[simulation.shared], data.train_y[simulation.shared]
    of_label = [
        np.mean([(0.5 - (label == own)) * row for row, own in zip(x, y, strict=True)], axis=0) for label in (0, 1)
    ]
    np.testing.assert_allclose(member.state.weights, -0.3 * np.concatenate(of_label), rtol=1e-5)
    assert member.state.rounds_done == 0
    assert torch.equal(simulation.start_weights, torch.zeros(4))


@pytest.mark.parametrize(("epochs", "steps"), [(1, 13), (2, 26), (0, 0)])
def test_a_pass_takes_as_many_steps_as_g_has_batches(epochs: int, steps: int) -> None:
    simulation = Simulation(small(*SHARING, f"data.warm_up_epochs={epochs}"))
    jobs = simulation.warm_up_jobs(simulation.start())
    assert [job.rule.steps for job in jobs] == ([steps] if steps else [])
    for job in jobs:
        counts = np.bincount(job.batches.ravel())[simulation.shared]
        assert counts.tolist() == [epochs] * 130


def test_engines_warm_up_alike_alone_and_in_company(tmp_path: Path) -> None:
    config = small(*SHARING)
    alone = Member(Simulation(config))
    records = followed([alone])[0]
    plain = followed([Member(Simulation(small()))])[0]
    assert records[0].train_loss is not None
    assert plain[0].train_loss is not None
    assert records[0].train_loss < plain[0].train_loss
    for engine in ("reference", "batched"):
        other = Member(Simulation(small(*SHARING, f"learning.engine={engine}")))
        with one_thread(CPU):  # so little work is quicker without others
            followed([other])
        torch.testing.assert_close(other.state.weights, alone.state.weights, rtol=1e-4, atol=1e-5)
    company = [Member(Simulation(each)) for each in (small("seed=1"), config, small(*SHARING, "seed=2"))]
    assert followed(company)[1] == records
    assert torch.equal(company[1].state.weights, alone.state.weights)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_resumed_run_is_warmed_up_once(rounds: int, tmp_path: Path) -> None:
    config = small(*SHARING)
    straight = Member(Simulation(config))
    followed([straight])
    with RunFolder.create(tmp_path / "run", config) as begun:
        turns = iter(range(100))
        drive([Member(Simulation(config), begun)], stopping=lambda: next(turns) >= rounds)
    with RunFolder.open(tmp_path / "run") as again:
        member = Member(Simulation(config), again)
        resume(member)
        assert member.state.rounds_done == rounds
        drive([member])
    assert torch.equal(member.state.weights, straight.state.weights)
    assert member.state.clock_s == straight.state.clock_s


# --- what users see -----------------------------------------------------------------------------------------------


def test_a_fleet_has_nothing_to_share() -> None:
    with pytest.raises(ValueError, match=r"data\.shared_fraction is 0\.1, but nodes bring data of their own"):
        FlareStrategy(small("data.shared_fraction=0.1"))


def test_the_command_line_says_what_is_wrong_and_reports_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [part for setting in SMALL for part in ("--set", setting)]
    code, _, said = command(capsys, "run", *some, "--set", "data.shared_fraction=0.001", "--out", str(tmp_path / "no"))
    assert code == 2
    assert "data.shared_fraction is 0.001, less than one sample of each of the 10 labels" in said
    assert not (tmp_path / "no").exists()
    more = [part for setting in SHARING for part in ("--set", setting)]
    code, _, said = command(capsys, "run", *some, *more, "--out", str(tmp_path / "run"), "--quiet")
    assert code == 0, said
    groups, ranked = ranked_groups([read_run(tmp_path / "run")])
    lead = headline(groups, [summarise(group) for group in groups], ranked)
    assert "shared data of 10 % of what devices hold, 50 % of it each" in lead
