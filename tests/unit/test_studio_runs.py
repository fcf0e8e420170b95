"""The runs of the studio's folder: their list, their curves, their rounds; nothing outside the folder."""

import asyncio
import hashlib
import json
import os
import shutil
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

import flare
from flare.records import RunFolder
from flare.records.glance import MAX_LOOK_BYTES
from flare.records.lines import first_mark, to_json
from flare.records.run import read_run
from flare.report.comparison import as_json
from flare.report.curves import accuracy_against_time
from flare.report.paired import ranked_groups
from flare.report.run_groups import group_runs
from flare.studio import run_index as index_module
from flare.studio.run_curves import CurveWish, compared, curves
from flare.studio.run_events import RunEvents, difference
from flare.studio.run_folders import RunFolders, inside
from flare.studio.run_index import RunIndex
from flare.studio.settings import Studio
from tests.studio_client import client_of
from tests.studio_runs import CONFIG, comparison, record, written

NUMBERS = ("round", "clock_s", "test_accuracy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A studio's folder with a comparison in it."""
    base = tmp_path_factory.mktemp("studio")
    comparison(base / "cmp")
    return base


@pytest.fixture(scope="module")
def client(folder):
    with client_of(Studio(folder)) as client:
        yield client


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "_FRESH_S", -1.0)
    return RunIndex(tmp_path)


def by_id(index):
    return {line.id: line for line in index.lines()}


def test_runs_are_found_as_they_appear_and_go(index, tmp_path):
    assert index.lines() == []
    written(tmp_path / "a", 3)
    written(tmp_path / "deep" / "er" / "b", 2, status="interrupted")
    lines = by_id(index)
    assert list(lines) == ["a", "deep/er/b"]
    assert (lines["a"].rounds, lines["a"].state, lines["a"].planned_rounds) == (3, "finished", 1000)
    assert lines["a"].accuracy == record(1).test_accuracy
    assert lines["a"].clock_s == record(2).clock_s
    assert (lines["deep/er/b"].group, lines["deep/er/b"].state) == ("deep/er", "interrupted")
    shutil.rmtree(tmp_path / "a")
    assert list(by_id(index)) == ["deep/er/b"]


def test_a_run_that_goes_on_grows_and_says_so(index, tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        for index_of_round in range(3):
            folder.append(record(index_of_round).to_json())
            line = by_id(index)["run"]
            assert (line.rounds, line.state) == (index_of_round + 1, "running")
            assert line.progress == (index_of_round + 1) / 1000


def test_a_run_whose_process_is_gone_is_stopped(index, tmp_path):
    written(tmp_path / "run", 2, status="running")
    for name in ("rounds.jsonl", "manifest.json"):
        os.utime(tmp_path / "run" / name, (1e9, 1e9))
    assert by_id(index)["run"].state == "stopped"


def test_nothing_is_read_again_that_did_not_change(index, tmp_path, monkeypatch):
    for number in range(3):
        written(tmp_path / str(number), 2)
    before = index.lines()
    monkeypatch.setattr(index_module, "read_manifest", None)  # reading would fail
    assert index.lines() == before


def test_runs_beyond_the_time_of_a_look_are_read_with_the_next(index, tmp_path, monkeypatch):
    written(tmp_path / "a", 2)
    monkeypatch.setattr(index_module, "_MAX_LOOK_S", -1.0)
    assert by_id(index)["a"].state == "reading"
    assert by_id(index)["a"].state == "reading"
    monkeypatch.undo()
    index._looked_at = -1e9
    assert by_id(index)["a"].state == "finished"


def test_groups_are_sweeps_comparisons_and_folders(index, tmp_path):
    for run, beside in (("s/runs/1", "s/sweep.json"), ("c/x", "c/comparison.json"), ("f/y", None), ("z", None)):
        written(tmp_path / run, 1)
        if beside:
            (tmp_path / beside).write_text("{}")
    kinds = {line.id: (line.group, line.group_kind) for line in index.lines()}
    assert kinds == {
        "c/x": ("c", "comparison"),
        "f/y": ("f", "folder"),
        "s/runs/1": ("s", "sweep"),
        "z": ("", "folder"),
    }


def test_a_damaged_run_is_listed_with_what_is_wrong_and_without_the_path_of_the_folder(index, tmp_path):
    written(tmp_path / "bad", 1)
    (tmp_path / "bad" / "config.toml").write_text("[wireless]\nnum_devices = 'x'")
    written(tmp_path / "good", 1)
    lines = by_id(index)
    assert lines["bad"].state == "damaged"
    assert "num_devices" in lines["bad"].problem
    assert str(tmp_path) not in lines["bad"].problem
    assert lines["good"].state == "finished"


def test_records_with_numbers_that_are_none_take_no_other_run_down(tmp_path):
    written(tmp_path / "good", 3)
    wrong = [10**400, [1], {}, True]
    cases = {f"{name}-{at}": (name, value) for name in NUMBERS for at, value in enumerate(wrong)}
    cases["round-none"] = ("round", None)
    for run, (name, value) in cases.items():
        folder = written(tmp_path / run, 0)
        before = first_mark(json.loads((folder / "manifest.json").read_text())).check
        body = to_json({**record(1).to_json(), name: value})[:-1]
        check = hashlib.sha256((before or "").encode() + body).hexdigest()[:16]
        (folder / "rounds.jsonl").write_bytes(body + f',"check":"{check}"}}\n'.encode())
    with client_of(Studio(tmp_path)) as client:
        lines = {one["id"]: one for one in client.get("/api/runs").json()["runs"]}
        sparklines = client.post("/api/runs/sparklines", {"runs": list(lines)}).json()["sparklines"]
    assert (lines["good"]["state"], lines["good"]["rounds"], len(sparklines["good"])) == ("finished", 3, 1)
    for run, (name, _) in cases.items():
        assert (lines[run]["state"], sparklines[run]) == ("damaged", [])
        assert name in lines[run]["problem"]


def test_of_records_without_an_end_only_so_much_is_read(tmp_path):
    run = written(tmp_path / "run", 3)
    os.truncate(run / "rounds.jsonl", 20 << 30)  # takes no room on the disk
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("devices = 4", "devices = 10_000_000"))
    index = RunIndex(tmp_path)
    tracemalloc.start()
    (line,) = index.lines()
    assert index.sparkline("run") == []
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (line.state, "no line ends" in line.problem) == ("damaged", True)
    assert most < 3 * MAX_LOOK_BYTES


def test_long_words_of_a_manifest_are_cut(index, tmp_path):
    run = written(tmp_path / "run", 1)
    told = json.loads((run / "manifest.json").read_text()) | {"status": "x" * 1_000_000, "driver": "y" * 1_000_000}
    (run / "manifest.json").write_text(json.dumps(told))
    assert len(json.dumps(by_id(index)["run"].as_json())) < 2000


def test_links_and_hidden_folders_are_not_looked_into(index, tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    written(outside / "run", 1)
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "run").symlink_to(outside / "run")
    written(tmp_path / ".hidden" / "run", 1)
    assert index.lines() == []


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../..", "/etc", "", "a//b", "a/", "./a", "a\0", "link", "link/run", "..\\x", "file"]
)
def test_no_path_leads_out_of_the_folder(path, tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "run").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(LookupError):
        inside(tmp_path, path)
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    assert inside(tmp_path, ".") == tmp_path


def test_a_folder_that_changed_within_a_tick_of_the_clock_is_looked_into_again(tmp_path):
    folders = RunFolders(tmp_path)
    assert folders.look() == []
    written(tmp_path / "run", 1)
    status = tmp_path.stat()
    assert folders.look() == ["run"]
    written(tmp_path / "other", 1)
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folders.look() == ["other", "run"]


def test_sparklines_are_test_accuracies_along_the_run(index, tmp_path):
    written(tmp_path / "run", 10)
    assert index.sparkline("run") == [round(record(each).test_accuracy, 4) for each in (1, 3, 5, 7, 9)]


def test_of_a_run_that_is_gone_nothing_is_kept(index, tmp_path):
    for name in ("stays", "goes"):
        written(tmp_path / name, 4)
        index.sparkline(name)
    shutil.rmtree(tmp_path / "goes")
    index.lines()
    assert list(index._sparklines) == ["stays"]


def test_events_tell_everything_first_and_then_what_changed(tmp_path):
    one, other = replace(index_module.RunLine("a", "a")), index_module.RunLine("b", "b")
    assert difference(None, {}) == {"whole": True, "changed": [], "gone": []}
    assert difference({"a": one}, {"a": one}) is None
    news = difference({"a": one, "b": other}, {"a": replace(one, rounds=2)})
    assert news["gone"] == ["b"]
    assert [each["rounds"] for each in news["changed"]] == [2]


def test_the_stream_of_events_begins_with_all_runs(tmp_path):
    written(tmp_path / "run", 1)

    async def first():
        stream = RunEvents(RunIndex(tmp_path)).stream()
        text = await anext(stream)
        await stream.aclose()
        return text

    text = asyncio.run(first()).decode()
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert [line["id"] for line in json.loads(text[6:])["changed"]] == ["run"]


def test_the_list_has_every_run_of_the_comparison(client):
    told = client.get("/api/runs").json()
    assert len(told["runs"]) == 6
    assert {(line["method"], line["policy"], line["group_kind"]) for line in told["runs"]} == {
        ("flare", "exact", "comparison"),
        ("fedavg", "cp", "comparison"),
    }
    assert "accuracy" in told["quantities"]


def named(folder):
    return [(f"cmp/{each.name}", read_run(each)) for each in sorted((folder / "cmp").iterdir()) if each.is_dir()]


def test_curves_are_those_of_the_report(client, folder):
    runs = named(folder)
    body = {"runs": [name for name, _ in runs], "x": "time"}
    told = client.post("/api/runs/curves", body).json()
    for group, curve in zip(group_runs([run for _, run in runs])[0], told["curves"], strict=True):
        expected = accuracy_against_time(group)
        assert curve["label"] == group.label
        assert curve["seeds"] == [0, 1, 2]
        np.testing.assert_allclose(curve["y"], expected.mean)
        np.testing.assert_allclose(curve["high"], expected.high)
    each = client.post("/api/runs/curves", {**body, "together": False}).json()["curves"]
    assert [curve["label"] for curve in each] == body["runs"]
    assert each[0]["low"] == [None] * len(each[0]["x"])  # of one seed there is no interval


def test_a_long_run_is_thinned_and_finer_where_it_is_zoomed(tmp_path):
    run = read_run(written(tmp_path / "run", 500))
    thin = curves([("run", run)], CurveWish("train_loss", points=50))["curves"][0]
    assert len(thin["x"]) == 50
    np.testing.assert_allclose(thin["y"][0], np.mean([1 / (index + 1) for index in range(10)]))
    fine = curves([("run", run)], CurveWish("train_loss", points=50, begin=101, end=120))["curves"][0]
    assert fine["x"] == [float(number) for number in range(101, 121)]
    np.testing.assert_allclose(fine["y"], [1 / number for number in range(101, 121)])
    timed = curves([("run", run)], CurveWish("train_loss", "time", points=500))["curves"][0]
    np.testing.assert_allclose(timed["x"], run.of_round["clock_s"])


def test_the_comparison_is_that_of_the_report(client, folder):
    runs = named(folder)
    told = client.post("/api/runs/compare", {"runs": [name for name, _ in runs]}).json()
    groups, rankings = ranked_groups([run for _, run in runs])
    assert told["rankings"] == json.loads(json.dumps([as_json(ranking) for ranking in rankings]))
    assert [group["label"] for group in told["groups"]] == [group.label for group in groups]
    shares = np.mean([run.participation() for run in groups[0].runs], axis=0)
    np.testing.assert_allclose(told["groups"][0]["participation"], shares)


def test_faults_are_counted_by_kind(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        for index, why in enumerate(("lost", "slow", "lost")):
            folder.append(record(index, faults=[{"node": 7, "when": "fit", "why": why}]).to_json())
    group = compared([("run", read_run(tmp_path / "run"))])["groups"][0]
    assert group["faults"] == [{"kind": "fit: lost", "count": 2}, {"kind": "fit: slow", "count": 1}]


def test_a_round_is_drawn_again_with_its_cell_and_reasons(client, folder):
    view = client.get("/api/runs/cmp/flare-exact-seed1/rounds/3").json()
    recorded = flare.load(folder / "cmp" / "flare-exact-seed1").records[3]
    assert view["round"] == 3
    assert view["untold"] == ""
    assert [one["index"] for one in view["devices"] if one["sends"]] == sorted(recorded.selected)
    assert view["outcome"]["clock_s"] == recorded.clock_s
    assert view["outcome"]["tested_after"] == 4
    for device in view["devices"]:
        assert (device["reason"] is None) == device["sends"]
        assert device["x_m"] is not None


def test_the_round_at_a_place_of_a_curve_is_the_nearest(client, folder):
    run = read_run(folder / "cmp" / "flare-exact-seed1")
    for index in range(6):
        time_s = run.of_round["clock_s"][index]
        for x, value in (("time", time_s), ("rounds", index + 1.2)):
            view = client.get("/api/runs/cmp/flare-exact-seed1/at", params={"x": x, "value": value}).json()
            assert view["round"] == index
            assert view["outcome"]["places"]["time"] == time_s


def test_a_round_of_real_nodes_is_shown_as_it_is_recorded(tmp_path):
    written(tmp_path / "run", 6, driver="flower")
    with client_of(Studio(tmp_path)) as client:
        assert client.get("/api/runs").json()["runs"][0]["kind"] == "flower"
        view = client.get("/api/runs/run/rounds/5").json()
    (device,) = view["devices"]
    assert (device["name"], device["x_m"], device["finish_s"]) == ("1", None, pytest.approx(0.3))
    assert "nodes" in view["untold"]


def test_a_trace_outside_the_folder_is_not_read(tmp_path, tmp_path_factory):
    secret = tmp_path_factory.mktemp("outside") / "trace.csv"
    secret.write_text("secret")
    config = replace(CONFIG, wireless=replace(CONFIG.wireless, trace=str(secret)))
    written(tmp_path / "run", 1, config=config, num_weights=10, split_evenly=False)
    with client_of(Studio(tmp_path)) as client:
        view = client.get("/api/runs/run/rounds/0").json()
    assert "outside the studio's folder" in view["untold"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/%2e%2e/curves",
        "/api/runs/..%2f..%2fetc/rounds/0",
        "/api/runs/cmp%2f..%2f..%2fetc/at?value=1",
        "/api/runs/cmp/rounds/0",
        "/api/runs/nothing/curves",
        "/api/runs/%00/curves",
        "/api/runs/cmp/flare-exact-seed0/rounds/6",
        "/api/runs/cmp/flare-exact-seed0/rounds/-1",
        "/api/runs/" + 300 * "x" + "/curves",
        "/api/runs/%ff%fe/curves",
    ],
)
def test_what_is_not_there_is_404(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"runs": ["cmp/flare-exact-seed0"], "metric": "acuracy"}, "accuracy"),
        ({"runs": ["cmp/flare-exact-seed0"], "x": "tiem"}, "time"),
        ({"runs": ["cmp/flare-exact-seed0"], "points": 10**9}, "2000"),
        ({"runs": 3}, "list"),
        ({"runs": [3]}, "string"),
        ({"more": 1}, ""),
    ],
)
def test_wrong_questions_are_answered_with_a_word(client, body, word):
    answer = client.post("/api/runs/curves", body)
    assert answer.status_code == 422
    assert word in answer.json()["error"]["message"]


def test_runs_that_are_gone_are_told_beside_the_others(client):
    told = client.post("/api/runs/curves", {"runs": ["gone", "../x", "cmp/flare-exact-seed0"]}).json()
    assert set(told["problems"]) == {"gone", "../x"}
    assert len(told["curves"]) == 1
