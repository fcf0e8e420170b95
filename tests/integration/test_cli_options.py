"""Options of a policy from a file, from `--set` and from `-o`; and a run in which nobody ever sent says why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flare.config import Config, Options, load, override
from flare.scheduling import POLICIES, RoundProblem, policy
from flare.sweeps.entries import of_pairs
from flare.sweeps.parts import AIR, CODEC, DATA, METHOD, MODEL, PARTS, POLICY, Part, with_options
from flare.types import Floats
from tests.hostile import flare

SMALL = [
    "--quiet", "--set", "wireless.num_devices=6", "--set", "wireless.deadline_s=5.0",
    "--set", "learning.model=logistic",
    "--set", "run.rounds=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def senders(folder: Path) -> list[int]:
    """How many devices sent in each round."""
    return [len(json.loads(line)["selected"]) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_an_option_by_file_setting_and_flag_is_the_same_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text('[scheduling]\npolicy = "random"\n[scheduling.options]\nnum_selected = 2\n')
    policy = ["--set", "scheduling.policy=random"]
    for name, arguments in {
        "file": ["run.toml"],
        "set": [*policy, "--set", "scheduling.options.num_selected=2"],
        "flag": [*policy, "-o", "num_selected=2"],
        "flag over file": ["run.toml", "--option", "num_selected=3"],
    }.items():
        code, _, err = flare(capsys, "run", *arguments, *SMALL, "--out", name)
        assert (code, err) == (0, "")
        number = 3 if name == "flag over file" else 2
        assert senders(tmp_path / name) == [number, number]
        assert load(tmp_path / name / "config.toml").scheduling.options == Options(num_selected=number)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "-o", "num_selected=2"], "policy 'exact' has no option 'num_selected' (its options: time_limit_s)"),
        (["run", "-o", "rng=1"], "'rng' is no option of policy 'exact'"),
        (["run", "-o", "problem=1"], "'problem' is no option of policy 'exact'"),
        (["run", "--set", "scheduling.policy=random", "-o", "num_selected=0"], "of policy 'random' is 0; it must be"),
        (
            ["run", "--set", "scheduling.policy=random", "-o", "num_selected=many"],
            "option 'num_selected' of policy 'random' is 'many'; it must be a whole number",
        ),
        (["run", "-o", "num_selected"], "--option: 'num_selected' is not of the form name=value"),
        (["run", "-o", "=3"], "--option: '=3' is not of the form name=value"),
        (["run", "-o", "a b=3"], "policy 'exact' has no option 'a b'"),
        (["run", "-o", "time_limit_s=1", "-o", "time_limit_s=2"], "--option: 'time_limit_s' is given twice"),
        (["compare", "-o", "time_limit_s=1", "-o", "time_limit_s=2"], "--option: 'time_limit_s' is given twice"),
        (["run", "-o", "max_devices=0"], "max_devices is 0; it must be a whole number of at least 1"),
        (["compare", "-o", "max_devices=0"], "max_devices is 0; it must be a whole number of at least 1"),
        (["run", "--set", "scheduling.num_selected=3"], "scheduling.num_selected has moved"),
        (
            ["compare", "--policies", "exact,random", "-o", "window=3"],
            "none of the policies has an option 'window' (their options: exact: time_limit_s; random: num_selected)",
        ),
        (["compare", "--resume", "x", "-o", "window=3"], "give --resume DIR alone"),
        (["run", "--resume", "x", "-o", "window=3"], "give --resume DIR alone"),
    ],
)
def test_a_wrong_option_is_found_before_anything_is_written(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = flare(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_in_a_comparison_each_policy_gets_the_options_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--policies", "exact,random,proportional-fair", "-o", "num_selected=2", "-o", "window=4.0"]
    code, out, _ = flare(capsys, "compare", *given, *SMALL, "--out", "here")
    assert code == 0
    assert "random, num_selected=2" in out
    got = {path.parent.name: load(path).scheduling.options for path in (tmp_path / "here").glob("*/config.toml")}
    assert got == {
        "flare-exact-seed0": Options(),
        "flare-random-seed0": Options(num_selected=2),
        "flare-proportional-fair-seed0": Options(num_selected=2, window=4.0),
    }


def test_the_options_are_in_what_config_prints_and_can_be_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = flare(capsys, "config")[1]
    assert "# options of the policy by name, such as num_selected = 10" in text
    (tmp_path / "own.toml").write_text(
        text.replace("[scheduling.options]\n", "[scheduling.options]\nnum_selected = 7\n")
    )
    assert load(tmp_path / "own.toml").scheduling.options == Options(num_selected=7)


def test_a_run_in_which_nobody_sent_says_so_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = [*SMALL, "--set", "run.payload=wireless", "--set", "wireless.payload_bits=1e12"]
    _, out, _ = flare(capsys, "run", *hopeless, "--out", "nobody")
    assert senders(tmp_path / "nobody") == [0, 0]
    assert "Nobody sent in any round of flare-exact-seed0" in out
    assert "1 Tbit" in out
    assert "the deadline is 5 s" in out
    assert "s (wireless.deadline_s)" in out
    why = json.loads(flare(capsys, "run", *hopeless, "--out", "nobody", "--force", "--json")[1])["why_nobody_sent"]
    assert why in out
    sent = json.loads(flare(capsys, "run", *SMALL, "--out", "some", "--json")[1])
    assert sent["why_nobody_sent"] is None
    _, out, _ = flare(capsys, "compare", *hopeless, "--policies", "exact,greedy", "--out", "both")
    assert out.count("Nobody sent in any round of") == 2


def test_none_is_an_option_left_to_its_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('[scheduling]\npolicy = "round-robin"\n[scheduling.options]\nnum_selected = 2\n')
    none = ["run.toml", *SMALL, "-o", "num_selected=none"]
    assert flare(capsys, "run", *none, "--out", "one")[0] == 0
    assert flare(capsys, "compare", *none, "--policies", "round-robin,exact", "--out", "two")[0] == 0
    for path in (tmp_path / "one" / "config.toml", *(tmp_path / "two").glob("*/config.toml")):
        assert load(path).scheduling.options == Options()


@pytest.fixture
def by_utility() -> Iterator[str]:
    @policy("[bold]mine")
    def mine(problem: RoundProblem) -> Floats:
        """Everybody is worth the same."""
        return np.ones(problem.num_devices)

    yield "[bold]mine"
    del POLICIES["[bold]mine"]


def test_a_limit_on_devices_reaches_every_policy_in_every_command(
    by_utility: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ["-o", "max_devices=2"]
    for name in (by_utility, "exact", "all"):
        said = flare(capsys, "schedule", "--cell", "paper", "--policy", name, *limit, "--json")[1]
        assert json.loads(said)["num_selected"] == 2
    policy_named = ["--set", f"scheduling.policy={by_utility}"]
    assert flare(capsys, "run", *SMALL, *policy_named, *limit, "--out", "one")[0] == 0
    code, out, _ = flare(capsys, "compare", *SMALL, "--policies", by_utility, *limit, "--out", "two", "--seeds", "1")
    assert code == 0
    assert by_utility in out  # not taken for a command to write in bold
    (other,) = (tmp_path / "two").glob("*/rounds.jsonl")
    assert senders(tmp_path / "one") == senders(other.parent) == [2, 2]


def test_a_schedule_of_a_file_has_the_options_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[scheduling]\npolicy = "random"\n[scheduling.options]\nnum_selected = 1\n'
    (tmp_path / "cell.toml").write_text(text)

    def selected(*more: str) -> int:
        answer = json.loads(flare(capsys, "schedule", "--cell", "cell.toml", "--deadline", "5s", *more, "--json")[1])
        return int(answer["num_selected"])

    assert selected() == selected("--policy", "random") == 1
    assert selected("-o", "num_selected=3") == 3
    assert selected("--policy", "ps") == 10  # another policy has its own


def test_a_schedule_with_nobody_says_which_options_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--compare"]):
        out = flare(capsys, "schedule", "--cell", "paper", "--payload", "68Mbit", *more)[1]
        assert "Nobody sends" in out
        for option in ("--deadline", "--bandwidth", "--payload"):
            assert f"({option})" in out
        found = re.search(r"a deadline of at least (\S+) ms \(--deadline\)", " ".join(out.split()))
        assert found is not None
        helped = flare(capsys, "schedule", "--cell", "paper", "--payload", "68Mbit", "--deadline", f"{found[1]}ms")[1]
        assert "Nobody sends" not in helped


def test_config_prints_what_a_file_and_settings_come_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("[run]\nrounds = 7\n")
    code, out, err = flare(capsys, "config", "mine.toml", "--set", "wireless.deadline_s=400ms")
    assert (code, err) == (0, "")
    (tmp_path / "all.toml").write_text(out)
    assert load(tmp_path / "all.toml") == override(load(tmp_path / "mine.toml"), ["wireless.deadline_s=0.4"])


def test_a_schedule_takes_settings_for_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--set", "wireless.deadline_s=2s"], ["--deadline", "2s"]):
        code, out, _ = flare(capsys, "schedule", "--cell", "paper", "--seed", "1", "--json", *arguments)
        assert code == 0
        assert json.loads(out)["deadline_s"] == 2.0


def test_the_number_that_ps_is_tuned_to_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flare(capsys, "run", *SMALL, "--set", "scheduling.policy=ps", "--out", "ps")[0] == 0
    tuned = json.loads((tmp_path / "ps" / "manifest.json").read_text())["tuned_options"]["num_selected"]
    assert max(senders(tmp_path / "ps")) <= tuned


# Of each part one that has options, and one of them; what the part is, where it is no default.
OPTIONS = {
    POLICY: (["scheduling.policy=random"], "num_selected=2"),
    METHOD: (["learning.method=fedprox"], "prox_mu=0.3"),
    MODEL: (["learning.model=mlp"], "hidden=7"),
    DATA: (["data.name=synthetic"], "beta=0.3"),
    CODEC: (["uplink.codec=topk"], "share=0.3"),
    AIR: (["uplink.air=ota"], "max_mse=0.3"),
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.registry.kind)
def test_every_part_is_given_its_option_in_a_run_and_in_a_comparison(part: Part) -> None:
    settings, text = OPTIONS[part]
    whole = override(Config(), settings)
    name, _, value = text.partition("=")
    pairs = [(METHOD.name(whole), POLICY.name(whole)), ("flare", "exact")]
    compared = of_pairs(whole, pairs, [text])
    for given in (with_options(whole, [text]), compared[0]):
        assert dict(part.options(given)) == {name: float(value)}
    if part not in (METHOD, POLICY):
        assert dict(part.options(compared[1])) == {name: float(value)}
