"""The command as a user runs it: a process, its output, its exit code. What is refused is tried in the test's own
process (`hostile.refused`), but for once."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flare import POLICIES, stream
from tests import hostile, ready_python

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ["--bandwidth", "10MHz", "--deadline", "2s", "--payload", "10Mbit"]
DEVICES = "examples/devices.csv"


def flare(*arguments: str, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flare", *arguments]
    done = ready_python.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1", **environment})
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def refused(*arguments: str) -> str:
    return hostile.refused(*arguments, cwd=ROOT)


def example_rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((ROOT / DEVICES).read_text())))


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    return str(path)


def test_the_table_names_every_device_and_says_how_good_the_schedule_is() -> None:
    out = flare("schedule", DEVICES, *SETTINGS, "--gamma", "10", "--policy", "exact").stdout
    for row in example_rows():
        assert row["name"] in out
    assert "proven optimal" in out
    assert "would worsen the objective by" in out
    assert "before the deadline of 2 s" in out


def test_json_holds_a_schedule_that_uses_the_band_and_meets_the_deadline() -> None:
    answer = json.loads(flare("schedule", DEVICES, *SETTINGS, "--json").stdout)
    senders = [device for device in answer["devices"] if device["selected"]]
    assert answer["status"] == "optimal"
    assert answer["objective"] == answer["lower_bound"]
    assert len(senders) == answer["num_selected"] > 0
    assert math.isclose(sum(device["bandwidth_hz"] for device in senders), 10e6, rel_tol=1e-9)
    for device in senders:
        assert math.isclose(device["finish_s"], answer["latency_s"], rel_tol=1e-9)
        assert device["finish_s"] <= 2.0
        assert device["reason"] == ""
    for device in answer["devices"]:
        if not device["selected"]:
            assert device["upload_s"] is None
            assert device["reason"]


def test_csv_says_the_same_as_json() -> None:
    answer = json.loads(flare("schedule", DEVICES, *SETTINGS, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(flare("schedule", DEVICES, *SETTINGS, "--csv").stdout)))
    assert [row["device"] for row in rows] == [device["device"] for device in answer["devices"]]
    assert [float(row["bandwidth_hz"]) for row in rows] == [device["bandwidth_hz"] for device in answer["devices"]]
    assert [row["selected"] == "true" for row in rows] == [device["selected"] for device in answer["devices"]]


def test_direct_and_physical_columns_give_the_same_schedule(tmp_path: Path) -> None:
    physical = json.loads(flare("schedule", DEVICES, *SETTINGS, "--json").stdout)
    noise_w_per_hz = 10 ** (-11.4) * 1e-3 * 1e-6
    lines = ["name,tau,compute_s,snr_hz"]
    for row in example_rows():
        compute_s = float(row["tau"]) * float(row["cycles_per_sample"]) * 40 / float(row["cpu_hz"])
        power_w = 10 ** (float(row["power_dbm"]) / 10) * 1e-3
        snr_hz = power_w * float(row["distance_m"]) ** -3.76 / noise_w_per_hz
        lines.append(f"{row['name']},{row['tau']},{compute_s!r},{snr_hz!r}")
    direct = json.loads(flare("schedule", table(tmp_path, "\n".join(lines)), *SETTINGS, "--json").stdout)
    for one, other in zip(physical["devices"], direct["devices"], strict=True):
        assert one["selected"] == other["selected"]
        assert math.isclose(one["bandwidth_hz"], other["bandwidth_hz"], rel_tol=1e-9)


def test_compare_lists_every_policy_best_first_and_none_is_better_than_exact() -> None:
    rows = json.loads(flare("schedule", "--cell", "paper", "--seed", "3", "--compare", "--json").stdout)["policies"]
    compared = {name for name, one in POLICIES.items() if "labels" not in one.needed({})}  # no round has labels
    assert {row["policy"] for row in rows} == compared
    own = [name for name in compared if POLICIES[name].own_deadline]  # they end the round themselves: listed last
    assert {row["policy"] for row in rows[len(rows) - len(own) :]} == set(own)
    assert all(row["gap"] is None for row in rows[len(rows) - len(own) :])
    rows = rows[: len(rows) - len(own)]
    objectives = [row["objective"] for row in rows]
    assert objectives == sorted(objectives)
    assert rows[0]["objective"] == next(row["objective"] for row in rows if row["policy"] == "exact")
    assert all(row["gap"] >= 0.0 and row["solve_s"] > 0.0 for row in rows)
    words = flare("schedule", "--cell", "paper", "--seed", "3", "--compare").stdout
    assert all(name in words for name in compared)


def test_the_same_seed_draws_the_same_cell_and_another_seed_another() -> None:
    one, same, other = (flare("schedule", "--cell", "paper", "--seed", s, "--json").stdout for s in "334")
    assert one == same
    assert one != other


def test_a_cell_file_sets_seed_and_policy_and_options_override_it(tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_text('seed = 3\n[wireless]\nnum_devices = 7\n[scheduling]\npolicy = "cp"\n')
    answer = json.loads(flare("schedule", "--cell", str(path), "--json").stdout)
    assert answer["policy"] == "cp"
    assert len(answer["devices"]) == 7
    answer = json.loads(flare("schedule", "--cell", str(path), "--policy", "cm", "--deadline", "1s", "--json").stdout)
    assert (answer["policy"], answer["deadline_s"]) == ("cm", 1.0)


def test_a_policy_takes_its_options_and_is_measured_against_the_proven_bound() -> None:
    arguments = ["schedule", "--cell", "paper", "--deadline", "2s", "--policy", "ps", "-o", "num_selected=2", "--json"]
    answer = json.loads(flare(*arguments).stdout)
    assert answer["num_selected"] == 2
    assert 0.0 < answer["lower_bound"] < answer["objective"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_writes_the_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cell.{suffix}"
    out = flare("schedule", DEVICES, *SETTINGS, "--plot", str(path)).stdout
    assert path.stat().st_size > 5000
    assert str(path) in out


def test_a_deadline_that_nobody_meets_is_an_answer_not_an_error() -> None:
    done = flare("schedule", DEVICES, "--bandwidth", "10MHz", "--deadline", "1ms", "--payload", "10Mbit")
    assert "infeasible" in done.stdout
    assert "Nobody sends" in done.stdout
    assert "too slow to compute" in done.stdout
    answer = json.loads(flare("schedule", DEVICES, *SETTINGS[:2], "--deadline", "1ms", *SETTINGS[4:], "--json").stdout)
    assert (answer["status"], answer["num_selected"], answer["objective"]) == ("infeasible", 0, None)


def test_the_reasons_for_leaving_a_device_out(tmp_path: Path) -> None:
    # With gamma = 0 the objective is the mean of 1/tau: 1/9 of "good" alone, (1/9 + 1)/2 with "idle".
    need_hz = 9.8e6  # of "wide", of the 10 MHz there are
    wide_hz = need_hz * (2 ** (10e6 / 1.9 / need_hz) - 1)
    rows = ("slow,9,3,1e10", "weak,9,0.1,1e5", "idle,1,0.1,1e10", f"wide,8,0.1,{wide_hz!r}", "good,9,0.1,1e10")
    path = table(tmp_path, "name,tau,compute_s,snr_hz\n" + "\n".join(rows))
    answer = json.loads(flare("schedule", path, *SETTINGS, "--gamma", "0", "--json").stdout)
    devices = {device["device"]: device for device in answer["devices"]}
    assert {name: device["reason"] for name, device in devices.items()} == {
        "slow": "too slow to compute",
        "weak": "channel too weak",
        "idle": "would worsen the objective by 0.444",
        "wide": "does not fit",
        "good": "",
    }
    assert devices["idle"]["objective_change"] == pytest.approx((1 / 9 + 1) / 2 - 1 / 9)
    assert devices["wide"]["objective_change"] is devices["good"]["objective_change"] is None


def test_one_device_gets_the_whole_band(tmp_path: Path) -> None:
    path = table(tmp_path, "tau,compute_s,snr_hz\n3,0.1,1e10\n")
    answer = json.loads(flare("schedule", path, *SETTINGS, "--json").stdout)
    assert answer["devices"][0]["bandwidth_hz"] == pytest.approx(10e6, rel=1e-12)
    assert answer["latency_s"] == pytest.approx(0.1 + 1e7 / (1e7 * math.log2(1 + 1e10 / 1e7)), rel=1e-12)


GOOD = "tau,compute_s,snr_hz\n3,0.1,1e10\n"
BAD_TABLES = {
    "empty file": ("", ["empty"]),
    "header alone": ("tau,compute_s,snr_hz\n", ["no devices"]),
    "missing column": ("tau,compute_s\n3,0.1\n", ["line 1", "power_dbm", "snr_hz"]),
    "unknown column": ("tau,compute_s,snr_hzz\n3,0.1,1\n", ["line 1", "snr_hzz", "did you mean 'snr_hz'"]),
    "column twice": ("tau,tau,compute_s,snr_hz\n3,3,0.1,1\n", ["line 1", "tau", "twice"]),
    "both ways": ("tau,compute_s,cpu_hz,snr_hz\n3,0.1,1e9,1\n", ["compute_s", "cpu_hz"]),
    "text": ("tau,compute_s,snr_hz\n3,fast,1e10\n", ["line 2", "column compute_s", "fast"]),
    "nan": (GOOD + "3,nan,1e10\n", ["line 3", "column compute_s", "nan"]),
    "infinite": (GOOD + "3,0.1,inf\n", ["line 3", "column snr_hz", "inf"]),
    "negative": (GOOD + "3,-1,1e10\n", ["line 3", "column compute_s", "-1"]),
    "zero channel": (GOOD + "3,0.1,0\n", ["line 3", "column snr_hz", "greater than 0"]),
    "tau below one": (GOOD + "0.5,0.1,1e10\n", ["line 3", "column tau", "at least 1"]),
    "empty cell": (GOOD + "3,,1e10\n", ["line 3", "column compute_s", "empty"]),
    "semicolons": ("tau;compute_s;snr_hz\n3;0.1;1e10\n", ["line 1", "commas"]),
    "short row": (GOOD + "3,0.1\n", ["line 3", "2 cells", "3 columns"]),
    "names twice": ("name,tau,compute_s,snr_hz\na,3,0.1,1\nb,3,0.1,1\na,3,0.1,1\n", ["line 4", "'a'", "line 2"]),
    "no name": ("name,tau,compute_s,snr_hz\n,3,0.1,1\n", ["line 2", "column name"]),
    "absurd units": ("tau,compute_s,power_dbm,gain_db\n3,0.1,1000,0\n", ["snr_hz", "units"]),
    "sign": ("tau,compute_s,power_dbm,gain_db\n3,0.1,20,95\n", ["line 2", "column gain_db", "95", "minus sign"]),
    "open quote": ('tau,compute_s,snr_hz\n3,"0.1,1e10\n', ["line 2", "CSV"]),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_gets_one_error_with_file_line_column_and_remedy(tmp_path: Path, case: str) -> None:
    text, expected = BAD_TABLES[case]
    path = table(tmp_path, text)
    message = refused("schedule", path, *SETTINGS)
    for part in [path, *expected]:
        assert part in message


def test_standard_output_may_be_closed() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m flare list policies >&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_refused_in_a_process_has_code_2_and_one_line_on_standard_error(tmp_path: Path) -> None:
    done = flare("schedule", str(tmp_path / "none.csv"), *SETTINGS, expect=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.strip() == refused("schedule", str(tmp_path / "none.csv"), *SETTINGS)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    assert "cannot be read" in refused("schedule", str(tmp_path / "none.csv"), *SETTINGS)
    assert "cannot be read" in refused("schedule", str(tmp_path), *SETTINGS)
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    assert "UTF-8" in refused("schedule", str(tmp_path / "binary.csv"), *SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--bandwidth", "10Mz", *SETTINGS[2:]], ["--bandwidth", "10Mz", "10MHz"]),
        (["--bandwidth", "ten", *SETTINGS[2:]], ["--bandwidth", "ten"]),
        (["--bandwidth=-1MHz", *SETTINGS[2:]], ["total_bandwidth_hz", "greater than 0"]),
        (["--bandwidth", "0", *SETTINGS[2:]], ["total_bandwidth_hz", "greater than 0"]),
        (["--bandwidth", "1e400", *SETTINGS[2:]], ["--bandwidth", "too large"]),
        ([*SETTINGS, "--gamma=-1"], ["gamma", "-1"]),
        ([*SETTINGS, "--gamma", "nan"], ["gamma", "nan"]),
        (SETTINGS[:4], ["--payload", "10Mbit"]),
        ([*SETTINGS, "--policy", "exakt"], ["exakt", "did you mean 'exact'", "greedy"]),
        ([*SETTINGS, "--policy", "ps", "-o", "number=3"], ["number", "num_selected"]),
        ([*SETTINGS, "--policy", "ps", "-o", "num_selected"], ["num_selected", "name=value"]),
        ([*SETTINGS, "--policy", "ps", "-o", "num_selected=0"], ["num_selected", "at least 1"]),
        ([*SETTINGS, "-o", "time_limit_s=-1"], ["time_limit_s", "greater than 0"]),
        ([*SETTINGS, "-o", "time_limit_s=soon"], ["time_limit_s", "soon"]),
        ([*SETTINGS, "--json", "--csv"], ["--json", "--csv"]),
        ([*SETTINGS, "--cell", "paper"], ["--cell", "either"]),
        ([*SETTINGS, "--noise", "1e308"], ["noise_dbm_per_mhz", "at most"]),
        ([*SETTINGS, "--path-loss-exponent", "-5"], ["path_loss_exponent", "greater than 0"]),
        ([*SETTINGS, "--time-limit", "0"], ["time_limit_s", "greater than 0"]),
        ([*SETTINGS, "--plot", "cell.gif"], ["cell.gif", "png"]),
        ([*SETTINGS, "--plot", "examples/devices.csv/cell.png"], ["examples/devices.csv/cell.png"]),
    ],
)
def test_a_bad_option_gets_one_error(arguments: list[str], expected: list[str]) -> None:
    message = refused("schedule", DEVICES, *arguments)
    for part in expected:
        assert part in message


def test_options_of_a_table_are_refused_beside_a_cell() -> None:
    assert "noise" in refused("schedule", "--cell", "paper", "--noise", "-100")
    assert "batch_size" in refused("schedule", "--cell", "paper", "--batch-size", "5")


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path) -> None:
    for arguments in (["--compare"], []):
        out = flare("schedule", DEVICES, *SETTINGS, *arguments, COLUMNS="80", FORCE_COLOR="1", TERM="dumb").stdout
        assert "…" not in out


def test_a_round_that_cannot_be_proven_in_time_says_so(tmp_path: Path) -> None:
    # Bandwidths tied to tau: a subset-sum problem of 40 devices.
    draw = stream(5, "hard")
    needs = draw.uniform(4e5, 3e6, size=40).tolist()
    lines = [f"{1 / (1 - need / 4e6)!r},0,{need * math.expm1(1e7 / need * math.log(2))!r}" for need in needs]
    path = table(tmp_path, "tau,compute_s,snr_hz\n" + "\n".join(lines))
    hard = ["--bandwidth", "20MHz", "--deadline", "1s", "--payload", "10Mbit", "--gamma", "1e4", "--time-limit", "0.3"]
    answer = json.loads(flare("schedule", path, *hard, "--json").stdout)
    assert answer["status"] == "feasible"
    assert 0.0 < answer["gap"] < 0.05
    assert "above bound" in flare("schedule", path, *hard, "--compare").stdout


def test_bad_cells() -> None:
    assert "paper-cifar10" in refused("schedule", "--cell", "papper")
    assert "cannot be read" in refused("schedule", "--cell", "none.toml")
    assert "either" in refused("schedule")


def test_a_wrong_flag_is_a_usage_error() -> None:
    assert "No such option" in flare("schedule", "--bandwith", "1", expect=2).stderr


@pytest.mark.parametrize("command", ["schedule --cell paper --json", "schedule --cell paper", "data list"])
def test_a_reader_that_leaves_early_is_no_error(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "flare", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) == 0


def test_a_hundred_thousand_devices_are_scheduled(tmp_path: Path) -> None:
    lines = [f"{1 + i % 9},{0.001 * (1 + i % 97)},{1e9 * (1 + i % 89)}" for i in range(100_000)]
    path = table(tmp_path, "tau,compute_s,snr_hz\n" + "\n".join(lines) + "\n")
    done = flare("schedule", path, *SETTINGS)
    assert "of 100000 devices send" in done.stdout
    assert "proven optimal" in done.stdout
    assert len(done.stdout.splitlines()) < 100


def test_version_and_help() -> None:
    assert flare("--version").stdout.startswith("flare ")
    assert "schedule" in flare("--help").stdout
    assert "--bandwidth" in flare("schedule", "--help").stdout == flare("schedule", "-h").stdout
