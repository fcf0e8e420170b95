"""New runs in the studio: a form of every setting, the same errors as elsewhere, and processes that outlive it."""

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

from flare.config import Config, override, settings_of
from flare.config.options import Options
from flare.studio.launching import MAX_RUNNING, NOTES, Job, Launcher, NotNowError, refuse_name
from flare.studio.run_form import COMMON, PATHS, arguments, changed_settings, checked, form
from flare.studio.settings import Studio
from flare.sweeps.parts import PARTS
from tests.studio_client import client_of, refused
from tests.studio_runs import written

WAITING = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print("begun", flush=True)
time.sleep(60)
"""


@pytest.fixture
def client(tmp_path):
    with client_of(Studio(tmp_path)) as client:
        yield client


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path, program=(sys.executable, "-c", WAITING))
    yield made
    for child in made._children.values():
        child.kill()
        child.wait()


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def fields():
    return {setting["name"]: setting for section in form()["sections"] for setting in section["settings"]}


def test_the_form_has_every_setting_with_its_comment_and_default():
    config, known = Config(), fields()
    tables = {name for name, value in settings_of(config).items() if isinstance(value, Options)}
    assert known.keys() | tables == settings_of(config).keys()
    assert {part["table"] for part in form()["parts"]} <= tables
    assert all(setting["doc"] and setting["must_be"] for setting in known.values())
    for name, setting in known.items():
        if name not in PATHS:
            assert override(config, [f"{name}={setting['default']}"]) == config
    assert set(COMMON) <= known.keys()
    assert {section["title"] for section in form()["sections"]}.isdisjoint({"wireless", "learning", "data"})
    json.dumps(form(), allow_nan=False)


def test_parts_have_the_options_of_what_is_registered():
    for part, told in zip(PARTS, form()["parts"], strict=True):
        assert [thing["name"] for thing in told["things"]] == list(part.registry)
        for thing in told["things"]:
            assert [option["key"] for option in thing["options"]] == list(part.registry[thing["name"]].options)


@pytest.mark.parametrize(
    ("settings", "field", "word"),
    [
        ({"wireless.num_devices": "x"}, "wireless.num_devices", "whole number"),
        ({"wireless.num_devices": "0"}, "wireless.num_devices", "at least 1"),
        ({"wireless.deadline_s": "400 parsec"}, "wireless.deadline_s", "parsec"),
        ({"wireless.min_distance_m": "600"}, "wireless.min_distance_m", "max_distance_m"),
        ({"wireless.tau_law": "list"}, "wireless.tau_values", "each device"),
        ({"learning.methd": "flare"}, "learning.methd", "learning.method"),
        ({"lr": "0.1"}, "lr", "learning.local_lr"),
        ({"wirless.deadline_s": "1"}, "wirless.deadline_s", "unknown section"),
        ({"learning.method": "fedavgg"}, "learning.method", "fedavg"),
        ({"learning.options.tau_bar": "most"}, "learning.options.tau_bar", "mas"),
        ({"scheduling.options.num_selected": "3"}, "scheduling.options.num_selected", "no option"),
        ({"wireless.trace": "../trace.csv"}, "wireless.trace", "leads out"),
        ({"data.folder": "/etc"}, "data.folder", "leads out"),
        ({"plugins": '["../mine.py"]'}, "plugins", "leads out"),
        ({"run.rounds": "1\n2"}, "run.rounds", "one line"),
        ({"wireless": "3"}, "wireless", "section"),
        ({"wireless": '{trace="/etc/passwd"}'}, "wireless", "section"),
        ({".plugins": '["/x/evil.py"]'}, ".plugins", "no name"),
        ({"plugins.": '["/x/evil.py"]'}, "plugins.", "no name"),
        ({"plugins ": '["/x/evil.py"]'}, "plugins ", "no name"),
        ({" wireless.trace": "/etc/passwd"}, " wireless.trace", "no name"),
        ({"seed=1;plugins": "x"}, "seed=1;plugins", "no name"),
        ({"": "x"}, "", "no name"),
        ({"plugins": ""}, "plugins", "empty"),
        ({"seed": "0x" + "f" * 5000}, "seed", "too many digits"),
        ({"wireless.num_devices": "[0x" + "f" * 5000 + "]"}, "wireless.num_devices", "too many digits"),
        ({"wireless.trace": '"a\\u0000b"'}, "wireless.trace", "leads out"),
        ({"plugins": "/x/evil.py"}, "plugins", "leads out"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field(settings, field, word, tmp_path):
    found = checked(settings, tmp_path)
    assert found.config is None
    assert list(found.errors) == [field]
    assert word in found.errors[field]


def test_all_that_is_wrong_is_told_at_once_and_nothing_else(tmp_path):
    wrong = {"wireless.num_devices": "x", "run.rounds": "-1", "wireless.min_distance_m": "600"}
    right = {"wireless.max_distance_m": "700", "seed": "3"}
    assert checked(wrong | right, tmp_path).errors.keys() == {"wireless.num_devices", "run.rounds"}
    assert checked({"wireless.min_distance_m": "600"} | right, tmp_path).errors == {}


def test_a_link_out_of_the_folder_is_no_way_for_a_trace(tmp_path, tmp_path_factory):
    (tmp_path / "traces").symlink_to(tmp_path_factory.mktemp("outside"))
    assert "wireless.trace" in checked({"wireless.trace": "traces/a.csv"}, tmp_path).errors
    assert checked({"wireless.trace": "a.csv"}, tmp_path).config.wireless.trace == str(tmp_path / "a.csv")


def test_settings_of_a_configuration_are_read_back_as_the_same(tmp_path):
    texts = [
        "wireless.num_devices=7", "learning.method=fedprox", "learning.options.prox_mu=0.3", "scheduling.gamma=auto",
        "uplink.bits=default", "wireless.cpu_every_round=false", "wireless.total_bandwidth_hz=5MHz",
    ]  # fmt: skip
    config = override(Config(), texts)
    settings = changed_settings(config)
    assert "uplink.bits" not in settings
    assert checked(settings, tmp_path).config == config


def test_the_command_says_the_same_as_the_form(tmp_path):
    settings = {"wireless.deadline_s": "400ms", "scheduling.policy": "ps", "scheduling.options.num_selected": "3"}
    words = arguments(settings, [], 1, "a b")
    given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert words[0] == "run"
    assert words[-2:] == ["--out", "a b"]
    assert override(Config(), given) == checked(settings, tmp_path).config
    several = arguments({"plugins": '["mine.py"]'}, ["flare:exact", "fedavg:cp"], 3, "c")
    assert several == [
        "compare",
        "--entry",
        "flare:exact",
        "--entry",
        "fedavg:cp",
        "--seeds",
        "3",
        "--plugin",
        "mine.py",
        "--out",
        "c",
    ]


def test_the_check_gives_errors_command_and_a_free_folder(client, tmp_path):
    written(tmp_path / "flare-exact-seed0", 1)
    told = client.post("/api/new-run/check", {"settings": {"run.rounds": "5"}}).json()
    assert told == {
        "errors": {},
        "command": "flare run --set run.rounds=5 --out flare-exact-seed0-2",
        "folder": "flare-exact-seed0-2",
    }
    wrong = client.post("/api/new-run/check", {"settings": {"run.rounds": "x"}, "name": "flare-exact-seed0"}).json()
    assert wrong["errors"].keys() == {"run.rounds", "name"}
    entries = client.post("/api/new-run/check", {"entries": ["flare:exct"]}).json()
    assert "exact" in entries["errors"]["entries"]
    own = client.post("/api/new-run/check", {"entries": ["flare:greedy,learning.local_lr=0.1", "flare:greedy"]}).json()
    assert own["errors"] == {}
    assert "--entry flare:greedy,learning.local_lr=0.1 --entry flare:greedy " in own["command"]
    odd = client.post("/api/new-run/check", {"settings": {"wireless.trace": "a b;rm -rf ~"}}).json()
    assert shlex.split(odd["command"])[3] == "wireless.trace=a b;rm -rf ~"


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        (["flare:greedy,learning.local_lr=-1"], "learning.local_lr"),
        (["flare:greedy", "flare:greedy"], "two entries"),
        (["flare:greedy,seed=3"], "same seeds"),
        (["flare:greedy,wireless.trace=/etc/passwd"], "leads out"),
        (["flare:greedy,data.folder = ../x"], "leads out"),
    ],
)
@pytest.mark.parametrize("plugins", [{}, {"plugins": "mine.py"}])
def test_what_is_wrong_with_an_entry_is_told(client, entries, word, plugins):
    told = client.post("/api/new-run/check", {"entries": entries, "settings": plugins}).json()
    if not plugins or "leads" in word or "seeds" in word:
        assert word in told["errors"]["entries"]
    else:  # what a plugin makes of it, only the run itself knows
        assert "entries" not in told["errors"]


def test_a_start_with_a_wrong_setting_starts_nothing(client, tmp_path):
    answer = client.post("/api/new-run/start", {"settings": {"run.rounds": "0"}})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "run.rounds")
    assert list(tmp_path.iterdir()) == []


def test_no_writing_of_a_name_starts_what_lies_outside(client, tmp_path, monkeypatch):
    monkeypatch.setattr(Launcher, "_start", lambda *_: pytest.fail("started"))
    for name in (".plugins", "plugins", "plugins.", " plugins", "a=b"):
        answer = client.post("/api/new-run/start", {"settings": {name: '["/x/evil.py"]'}})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, name)


def test_a_file_and_a_run_fill_the_form(client, tmp_path):
    read = client.post("/api/new-run/read", {"toml": "seed = 3\n[wireless]\nnum_devices = 5\n"})
    assert read.json() == {"settings": {"seed": "3", "wireless.num_devices": "5"}}
    wrong = client.post("/api/new-run/read", {"toml": "[wireless]\nnum_device = 5\n"})
    assert wrong.status_code == 422
    assert "num_devices" in wrong.json()["error"]["message"]
    assert str(tmp_path) not in wrong.json()["error"]["message"]
    written(tmp_path / "run", 1)
    like = client.post("/api/new-run/like", {"run": "run"})
    assert like.json()["settings"] == {"wireless.num_devices": "4", "run.rounds": "1000"}
    for run in ("..", "nothing", "../" + tmp_path.name):
        assert client.post("/api/new-run/like", {"run": run}).status_code == 404
        assert client.post("/api/runs/resume", {"run": run}).status_code == 404
        assert client.post("/api/runs/stop", {"run": run}).status_code == 409


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "/tmp/x", "a/../b", "-x", ".x", "a//b", "a\nb", "a\0b", "<b>", "x" * 121, "a/"]
)
def test_a_name_that_is_no_new_folder_here_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="name"):
        refuse_name(tmp_path, name)


def test_a_name_through_a_link_or_of_what_is_there_is_refused(tmp_path, tmp_path_factory):
    (tmp_path / "link").symlink_to(tmp_path_factory.mktemp("outside"))
    (tmp_path / "run").mkdir()
    for name in ("link/x", "link", "run"):
        with pytest.raises(ValueError, match=name.partition("/")[0]):
            refuse_name(tmp_path, name)
    refuse_name(tmp_path, "run/2 é+x=1")


def test_a_new_run_is_not_put_where_it_would_not_be_listed(client, tmp_path):
    written(tmp_path / "run", 1)
    for name in ("run/inner", "run/a/b", "a/checkpoints", "/".join("a" * 20)):
        refused(client.post("/api/new-run/start", {"settings": {}, "name": name}), 422, "name")
    with client_of(Studio(tmp_path / "run")) as inside_a_run:
        assert "folder of a run" in refused(inside_a_run.post("/api/new-run/start", {}), 422, "name")


def test_a_process_is_started_stopped_and_told_of(launcher, tmp_path):
    launcher.start(["run", "--out", "a"], "a")
    until(lambda: launcher.jobs()[0]["said"] == ["begun"])
    assert launcher.is_running("a")
    assert not launcher.is_running("b")
    assert launcher.is_running("a/seed0")  # of a comparison
    with pytest.raises(NotNowError, match="stop it first"):
        launcher.start(["run"], "a")
    assert launcher.free_name("a") == "a-2"
    launcher.let_end("a", 60.0)  # at once: nobody has asked it to stop
    launcher.stop("a")
    launcher.let_end("a", 60.0)
    assert launcher.jobs()[0]["state"] == "failed"  # this program does not end as flare does
    assert launcher.jobs()[0]["code"] in (130, -signal.SIGINT, 1)
    with pytest.raises(NotNowError, match="not started in this studio"):
        launcher.stop("a")


def test_a_studio_that_is_started_again_finds_its_processes(launcher, tmp_path):
    launcher.start(["run", "--out", "a"], "a")
    until(lambda: launcher.jobs()[0]["said"] == ["begun"])
    again = Launcher(tmp_path)
    assert again.is_running("a")
    again.stop("a")
    until(lambda: launcher._children[1].poll() is not None)
    assert not again.is_running("a")
    assert again.jobs()[0]["state"] == "ended"


def test_a_process_of_somebody_else_is_not_ours(tmp_path, launcher):
    launcher.start(["run"], "a")
    note = tmp_path / NOTES / "000001.json"
    told = json.loads(note.read_text())
    note.write_text(json.dumps(told | {"pid": os.getppid(), "began": told["began"] + "1"}))
    (tmp_path / NOTES / "000002.json").write_text("[" * 10_000)
    (tmp_path / NOTES / "000003.json").write_text(json.dumps(told | {"id": 3, "pid": -1}))
    other = Launcher(tmp_path)
    assert not other.is_running("a")
    assert [job["id"] for job in other.jobs()] == [1]


def test_the_token_is_not_handed_on_and_the_folder_is_no_place_for_modules(tmp_path, monkeypatch):
    monkeypatch.setenv("FLARE_TOKEN", "x" * 16)
    said = "import os, sys; print(os.environ.get('FLARE_TOKEN'), os.getcwd(), '' in sys.path, sys.argv[1:])"
    launcher = Launcher(tmp_path, program=(sys.executable, "-c", said))
    launcher.start(["run", "--set", "x=<script>"], "a")
    until(lambda: launcher.jobs()[0]["state"] == "ended")
    assert launcher.jobs()[0]["said"] == [f"None {tmp_path} False ['run', '--set', 'x=<script>', '--quiet']"]


def test_a_comparison_is_resumed_as_a_whole_and_a_run_by_itself(client, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        Launcher, "_start", lambda self, words, run: started.append(words) or Job(1, run, words, 0, "", "")
    )
    written(tmp_path / "c" / "-x", 1, status="interrupted")
    (tmp_path / "c" / "comparison.json").write_text('["-x"]')
    for run in ("c", "c/-x"):
        assert client.post("/api/runs/resume", {"run": run}).status_code == 201
    assert started == [("compare", "--resume=c"), ("run", "--resume=c/-x")]


def test_a_run_with_files_outside_the_folder_is_not_resumed(client, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(Launcher, "_start", lambda *_: pytest.fail("started"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "evil.py").write_text("raise SystemExit('executed')\n")
    evil = replace(Config(), plugins=(str(elsewhere / "evil.py"),))
    heard = replace(Config(), wireless=replace(Config().wireless, trace=str(elsewhere / "trace.csv")))
    for name, config in (("c/evil", evil), ("heard", heard)):
        written(tmp_path / name, 1, status="interrupted", config=config)
    (tmp_path / "c" / "comparison.json").write_text('["evil"]')
    written(elsewhere / "run", 1, status="interrupted")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run").symlink_to(elsewhere / "run")
    (tmp_path / "d" / "comparison.json").write_text('["run"]')
    for run, word in (("c/evil", "plugins"), ("c", "plugins"), ("heard", "wireless.trace"), ("d", "no folder inside")):
        assert word in refused(client.post("/api/runs/resume", {"run": run}), 409)


def test_only_so_many_processes_go_on_at_once(launcher, monkeypatch):
    monkeypatch.setattr("flare.studio.launching.MAX_RUNNING", 2)
    for name in "ab":
        launcher.start(["run"], name)
    with pytest.raises(NotNowError, match="go on"):
        launcher.start(["run"], "c")
    assert MAX_RUNNING > 2


def test_what_somebody_put_among_the_notes_is_passed_over(tmp_path):
    notes = tmp_path / NOTES
    notes.mkdir()
    os.mkfifo(notes / "000001.log")
    (notes / "000002.log").symlink_to(tmp_path / "outside")
    (notes / "000003.json").mkdir()
    (notes / "000004.log").mkdir()
    launcher = Launcher(tmp_path, program=("true",))
    assert launcher.start(["run"], "a").id == 5
    until(lambda: launcher.jobs()[0]["state"] == "ended")
    assert not (tmp_path / "outside").exists()


def test_notes_that_cannot_be_written_are_told_of(client, tmp_path):
    (tmp_path / NOTES).write_text("mine")
    assert NOTES in refused(client.post("/api/new-run/start", {"settings": {}}), 409)
    assert client.get("/api/jobs").json() == {"jobs": []}
    (tmp_path / NOTES).unlink()
    (tmp_path / NOTES / ".lock").mkdir(parents=True)
    assert NOTES in refused(client.post("/api/new-run/start", {"settings": {}}), 409)


def test_two_studios_of_one_folder_keep_each_its_notes(launcher, tmp_path):
    other = Launcher(tmp_path, program=("false",))
    assert other.jobs() == launcher.jobs() == []
    assert (launcher.start(["run"], "a").id, other.start(["run"], "b").id) == (1, 2)
    assert {job["run"] for job in launcher.jobs()} == {job["run"] for job in other.jobs()} == {"a", "b"}
    with pytest.raises(NotNowError, match="stop it first"):
        other.start(["run"], "a")
    until(lambda: not other.is_running("b"))


def test_what_a_process_ended_with_is_known_after_a_restart(tmp_path):
    launcher = Launcher(tmp_path, program=("false",))
    launcher.start(["run"], "a")
    until(lambda: launcher.jobs()[0]["state"] == "failed")
    (told,) = Launcher(tmp_path).jobs()
    assert (told["state"], told["code"]) == ("failed", 1)


def test_of_the_oldest_processes_nothing_is_kept(launcher, monkeypatch):
    monkeypatch.setattr("flare.studio.launching.MAX_KEPT", 1)
    old = launcher.start(["run"], "old")
    launcher.stop("old")
    until(lambda: not launcher.is_running("old"))
    launcher.start(["run"], "new")
    assert [job["run"] for job in launcher.jobs()] == ["new"]
    assert old.id not in launcher._asked_to_stop


def test_notes_are_not_written_through_a_link(tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (tmp_path / NOTES).symlink_to(outside)
    with pytest.raises(NotNowError, match="link"):
        Launcher(tmp_path, program=("true",)).start(["run"], "a")
    assert list(outside.iterdir()) == []
