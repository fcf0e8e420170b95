"""Small things that users ran into: a wrong argument is answered with words, and what is said is true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flare
from flare.config import Config, override
from flare.records.run import read_run
from flare.report.paired import By, rank
from flare.report.run_groups import group_runs
from flare.research.pilots import luo_pilots
from flare.scheduling import POLICIES, Choice, History, Probe, RoundProblem, policy, solve
from flare.scheduling.explain import LeftOut, explain
from flare.simulation import Member, Simulation, drive
from flare.sweeps.entries import TextEntry, of_entries
from tests.hostile import flare as command
from tests.small_runs import OPTIONS, SETTINGS, SMALL


@pytest.fixture(autouse=True)
def only_our_policies() -> Iterator[None]:
    before = dict(POLICIES)
    yield
    for name in set(POLICIES) - set(before):
        del POLICIES[name]


# Settings of one entry


def test_an_entry_may_have_settings_of_its_own() -> None:
    entry = TextEntry.read("flare:exact, learning.local_lr=0.1,wireless.tau_values=[4,6],scheduling.options.x=a,b")
    assert (entry.method, entry.policy) == ("flare", "exact")
    assert entry.settings == ("learning.local_lr=0.1", "wireless.tau_values=[4,6]", "scheduling.options.x=a,b")
    assert entry.name(3) == "flare-exact-local_lr=0.1-tau_values=_4_6_-x=a_b-seed3"
    assert TextEntry.read("flare:cp").name(0) == "flare-cp-seed0"
    named = TextEntry.read("flare:cp,label=Best channels, learning.local_lr=0.1")
    assert (named.label, named.settings, str(named)) == (
        "Best channels", ("learning.local_lr=0.1",), "flare:cp,learning.local_lr=0.1",
    )  # fmt: skip


def test_labels_are_words_that_only_one_entry_has() -> None:
    assert TextEntry.read('flare:cp,label="two words"').label == "two words"
    twins = [TextEntry.read(f"flare:{policy},label=same") for policy in ("cp", "exact")]
    with pytest.raises(ValueError, match="two entries are called 'same'; give one of them another label"):
        of_entries(Config(), twins)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("flare:cp,seed=3", "--seeds"),
        ("flare:cp,label=", "has a label without words"),
        ("flare:cp,learning.method=fedavg", "before the comma"),
        ("flare,learning.local_lr=0.1", "METHOD:POLICY"),
        ("flare:cp,learning.locl_lr=0.1", "local_lr"),
        ("flare:cp,learning.local_lr=-1", "learning.local_lr is -1"),
        ("flare:cp,scheduling.options.frobs=1", "frobs"),
        ("flare:cp,learning.local_lr=0.1,learning.local_lr=0.2", "sets learning.local_lr twice"),
        ("flare:ps,num_selected=3", "an option of it is written scheduling.options.num_selected=3"),
        ("fedprox:cp,prox_mu=0.1", "an option of it is written learning.options.prox_mu=0.1"),
    ],
)
def test_an_entry_that_cannot_be_ends_with_words(
    entry: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, said = command(capsys, "compare", "--entry", entry, *OPTIONS, "--out", str(tmp_path / "all"))
    assert code == 2
    assert why in " ".join(said.split())
    assert not (tmp_path / "all").exists()


def test_two_entries_of_one_pair_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    entries = ["--entry", "flare:greedy", "--entry", "flare:greedy,learning.local_lr=0.2"]
    given = [*entries, *OPTIONS, "--set", "run.rounds=2", "--out", str(folder), "--json"]
    code, told, _ = command(capsys, "compare", *given)
    assert code == 0
    names = ("flare-greedy-seed0", "flare-greedy-local_lr=0.2-seed0")
    assert [read_run(folder / name).config.learning.local_lr for name in names] == [0.05, 0.2]
    assert len(json.loads(told)) >= 1
    twins = ["--entry", "flare:cp,learning.local_lr=0.2", "--entry", "flare:cp,learning.local_lr=0.2"]
    code, _, said = command(capsys, "compare", *twins, *OPTIONS, "--out", str(tmp_path / "twins"))
    assert code == 2
    assert "two entries are called" in said
    for other in ("0.20", "2e-1"):
        twins = ["--entry", "flare:cp,learning.local_lr=0.2", "--entry", f"flare:cp,learning.local_lr={other}"]
        code, _, said = command(capsys, "compare", *twins, *OPTIONS, "--out", str(tmp_path / "twins"))
        assert code == 2
        assert "have the same settings" in " ".join(said.split())


def test_an_option_that_no_compared_policy_has_is_said_to_be_of_the_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = tmp_path / "my.toml"
    settings.write_text('[scheduling]\npolicy = "ps"\n[scheduling.options]\nnum_selected = 2\n')
    given = ["--entry", "flare:cp", "--entry", "fedavg:cp", *OPTIONS, "--out", str(tmp_path / "all")]
    code, _, said = command(capsys, "compare", str(settings), *given)
    assert code == 2
    words = " ".join(said.split())
    assert "(their options: cp: none); it is scheduling.options.num_selected of your settings" in words
    assert not (tmp_path / "all").exists()


def test_a_short_simulated_time_is_no_zero(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fast = ["--set", "run.rounds=1", "--set", "wireless.deadline_s=0.3", "--set", "wireless.payload_bits=1000"]
    code, said, lines = command(
        capsys, "compare", "--entry", "flare:cp", *OPTIONS, *fast, "--out", str(tmp_path / "all")
    )
    assert code == 0
    assert re.search(r" [1-9][\d.]* ms ", said)
    assert re.search(r"round 1 +[1-9][\d.]* ms ", lines)


# Probes


@pytest.mark.parametrize("head", ["()", "(problem, surprise)", "(problem, *, surprise)", "(*, problem)"])
def test_a_probe_that_cannot_be_called_is_refused_with_its_policy(
    head: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text(
        f"import flare\n\ndef ask{head}:\n    return None\n\n"
        '@flare.policy("asking", probe=ask)\ndef asking(problem, *, probed):\n    return problem.reachable\n'
    )
    given = ["--plugin", str(plugin), "--set", "scheduling.policy=asking", *OPTIONS, "--out", str(tmp_path / "run")]
    code, _, said = command(capsys, "run", *given)
    assert code == 2
    assert "its probe cannot be called" in " ".join(said.split())


def test_a_probe_may_take_what_its_policy_has() -> None:
    def ask(problem: RoundProblem, *, rng: np.random.Generator, samples: str, more: int = 3) -> Probe:
        return Probe(problem.reachable, samples=samples)

    @policy("asking-well", probe=ask, needs=("losses",))
    def asking(problem: RoundProblem, *, probed: object, samples: str = "batch") -> Any:
        return problem.reachable

    assert "asking-well" in POLICIES


def test_what_is_written_into_a_memory_and_not_returned_is_refused() -> None:
    @policy("forgetful")
    def forgetful(problem: RoundProblem, *, memory: dict[str, Any], returns: bool = False) -> Any:
        memory["asked"] = memory.get("asked", np.zeros(1)) + 1.0
        return Choice([0], memory=memory) if returns else [0]

    problem = RoundProblem([1.0], [0.1], [1e9], payload_bits=1e3, total_bandwidth_hz=1e6, deadline_s=1.0)
    with pytest.raises(ValueError, match=r"'forgetful' wrote into the memory .* returned none"):
        solve(problem, "forgetful")
    assert solve(problem, "forgetful", returns=True).memory["asked"].tolist() == [1.0]
    with pytest.raises(ValueError, match="a policy is asked for by its name, a text"):
        solve(problem, forgetful)  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [[0.7], [True], ["1"], [0, 1.0]])
def test_a_probe_of_no_whole_devices_is_refused(devices: list[Any]) -> None:
    with pytest.raises(ValueError, match="by whole numbers, counted from 0"):
        Probe(devices)  # type: ignore[arg-type]
    assert Probe([]).devices.dtype == np.intp  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"rounds": "x"}, {"rounds": 2.5}, {"rounds": True}, {"num_losses": None}])
def test_pilots_of_no_number_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it must be a whole number"):
        luo_pilots(SMALL, progress=False, **given)


# Who pairs


def test_a_run_with_shared_data_pairs_with_one_without(tmp_path: Path) -> None:
    runs = []
    for shared in (0.0, 0.1):
        told = flare.simulate(
            {**SMALL, "data.shared_fraction": shared, "data.warm_up_epochs": 1, "run": {"rounds": 2}},
            progress=False,
        )
        runs.append(told.numbers)
    groups, _ = group_runs(runs)
    second = rank(groups, By.ROUNDS).standings[1]
    assert second.difference is not None
    assert second.difference.mean.count == 1
    assert not second.remarks
    other = replace(runs[0], config=override(runs[0].config, ["data.partition=shards"]))
    other.manifest["identity"]["division"] = "another"  # type: ignore[index]
    (standing,) = rank(group_runs([runs[1], other])[0], By.ROUNDS).standings[1:]
    assert standing.difference is not None
    assert standing.difference.mean.count == 0


# Reasons


def problem_of_eight() -> RoundProblem:
    return RoundProblem(
        tau=np.arange(1.0, 9.0),
        compute_s=np.linspace(0.05, 0.3, 8),
        snr_hz=np.geomspace(1e6, 1e8, 8),
        payload_bits=1e6,
        total_bandwidth_hz=1e7,
        deadline_s=0.06,
        gamma=1.0,
    )


@pytest.mark.parametrize("name", ["luo", "ren"])
def test_who_was_not_drawn_is_said_to_be_not_chosen(name: str) -> None:
    history = History.empty(8, num_samples=np.full(8, 10.0))
    schedule = solve(problem_of_eight(), name, rng=flare.stream(3, "draw"), history=history, num_selected=2)
    why = explain(schedule).why
    left_out = [each for each in why if each is not None]
    assert len(left_out) >= 6
    assert set(left_out) == {LeftOut.NOT_CHOSEN}
    assert LeftOut.NOT_CHOSEN.counted(2).startswith("2 were not chosen")


# Over the air


@pytest.mark.parametrize(
    ("what", "why"), [("bandwidth_hz", "divides the band"), ("snr_hz", "says what interference leaves of the channels")]
)
def test_what_a_policy_says_in_vain_over_the_air_is_refused(what: str, why: str) -> None:
    @policy("own-terms")
    def own_terms(problem: RoundProblem) -> Choice:
        told = {"bandwidth_hz": [problem.total_bandwidth_hz], "snr_hz": [0.5 * problem.snr_hz[0]]}
        return Choice([0], **{what: told[what]})

    settings = [*SETTINGS, "uplink.air=ota", "scheduling.policy=own-terms", "run.rounds=1", "wireless.deadline_s=5"]
    with pytest.raises(ValueError, match=rf"policy 'own-terms' {why}: over the air"):
        drive([Member(Simulation(override(Config(), settings)))])


def test_an_option_of_a_codec_is_one_setting_however_it_is_spelled(tmp_path: Path) -> None:
    """Runs that differ in nothing else are seeds of one group, and its label tells the value."""
    for name, text, seed in (("one", "uplink.share=0.05", 0), ("two", "uplink.options.share=0.05", 1)):
        settings = [*SETTINGS, "uplink.codec=topk", "run.payload=model", "run.rounds=1", text, f"seed={seed}"]
        flare.simulate(override(Config(), settings), out=tmp_path / name, progress=False)
    settings = [*SETTINGS, "uplink.codec=topk", "run.payload=model", "run.rounds=1"]
    flare.simulate(override(Config(), settings), out=tmp_path / "three", progress=False)
    groups, _ = group_runs([read_run(tmp_path / name) for name in ("one", "two", "three")])
    assert [(group.label, len(group.runs)) for group in groups] == [("flare:exact, share 0.05", 2), ("flare:exact", 1)]
