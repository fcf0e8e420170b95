"""Own code by name in every command: `--plugin`, the setting `plugins`, `flare list`, and a plugin that changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flare import plugins
from flare.cli import app
from flare.cli.data import data_app
from flare.config import Config, Options, load, override
from flare.plugins import file_checksum
from flare.scheduling import POLICIES, RoundProblem, policy
from flare.sweeps import Place, Task, begin, run_tasks
from flare.uplink import CODECS
from tests.driving import stop_after
from tests.hostile import flare, paths
from tests.plugin_files import policy_file, registries_as_they_were
from tests.studio_runs import written

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
SMALL = [
    "--quiet", "--set", "wireless.num_devices=6", "--set", "wireless.deadline_s=5.0",
    "--set", "learning.model=logistic",
    "--set", "run.rounds=2",
]  # fmt: skip
MINE = ["--plugin", "mine.py", "--set", "scheduling.policy=mine"]
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with registries_as_they_were():
        yield


def selected(folder: Path) -> list[list[int]]:
    return [json.loads(line)["selected"] for line in (folder / "rounds.jsonl").read_text().splitlines()]


def manifest(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return found


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("patient.py", ["--set", "scheduling.policy=patient", "-o", "patience=3"]),
        ("capped.py", ["--set", "learning.method=capped", "-o", "max_steps=2", "-o", "pull=0.1"]),
        ("by_loss.py", ["--set", "learning.method=by-loss", "-o", "share=0.25"]),
        ("deep.py", ["--set", "learning.model=deep", "-o", "width=8"]),
        ("rings.py", ["--set", "data.name=rings", "-o", "noise=0.2", "--set", "wireless.batch_size=10"]),
    ],
)
def test_every_example_of_a_plugin_runs(file: str, arguments: list[str], tmp_path: Path, capsys: Capsys) -> None:
    code, _, err = flare(capsys, "run", *SMALL, "--plugin", str(EXAMPLES / file), *arguments, "--out", "here")
    assert (code, err) == (0, "")
    assert manifest(tmp_path / "here")["plugins"] == [
        {"path": str(EXAMPLES / file), "sha256": file_checksum(EXAMPLES / file)}
    ]
    assert load(tmp_path / "here" / "config.toml").plugins == (str(EXAMPLES / file),)


COMMANDS = {  # the least that each needs beside --plugin
    "schedule": ["--cell", "paper"],
    "studio": [".", "--no-browser", "--port", "0"],
    "serve": ["--port", "0"],
    "run": [],
    "compare": [],
    "sweep": [str(EXAMPLES.parent / "sweep.toml"), "--out", "swept"],
    "tune": ["--target", "0.5", "--out", "tuned"],
    "reproduce": ["fig3", "--quick"],
    "report": ["."],
    "export": [".", "--csv", "tables"],
    "config": [],
    "testbed": ["--read", "."],
    "list": ["policies"],
    "data list": [],
    "data fetch": ["digits"],
    "data show": [],
}


def all_commands() -> list[str]:
    """Every command of the command line."""
    named = {"": app.registered_commands, "data ": data_app.registered_commands}
    return [
        group + (command.name or command.callback.__name__)
        for group, commands in named.items()
        for command in commands
        if command.callback is not None
    ]


@pytest.mark.parametrize("command", all_commands())
def test_every_command_executes_the_plugins_that_it_is_given(command: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')\n")
    code, out, err = flare(capsys, *command.split(), *COMMANDS[command], "--plugin", "mine.py")
    assert (code, out) == (2, "")
    assert "plugin" in err
    assert "mine.py, line 1: SystemExit: executed" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_plugin_of_a_file_and_of_an_option_is_known_by_name(tmp_path: Path, capsys: Capsys) -> None:
    policy_file(tmp_path / "mine.py")
    (tmp_path / "run.toml").write_text('plugins = ["mine.py"]\n[scheduling]\npolicy = "mine"\n')
    for number, arguments in enumerate((["run.toml"], MINE)):
        assert flare(capsys, "run", *arguments, *SMALL, "--out", f"run{number}")[::2] == (0, "")
        assert selected(tmp_path / f"run{number}") == [[0, 1], [0, 1]]
        del POLICIES["mine"]
    assert flare(capsys, "run", "run.toml", *SMALL, "-o", "number=1", "--out", "one")[0] == 0
    assert selected(tmp_path / "one") == [[0], [0]]
    del POLICIES["mine"]
    table = ["schedule", "--cell", "paper", "--plugin", "mine.py", "--policy", "mine", "--json"]
    assert json.loads(flare(capsys, *table)[1])["num_selected"] == 2
    del POLICIES["mine"]
    assert flare(capsys, "schedule", "--cell", "run.toml", "--json")[0] == 0


def test_a_report_executes_no_plugin_that_was_not_named(tmp_path: Path, capsys: Capsys) -> None:
    path = policy_file(tmp_path / "mine.py")
    assert flare(capsys, "run", *MINE, *SMALL, "--out", "here")[0] == 0
    del POLICIES["mine"]
    path.write_text("raise SystemExit('executed')\n")
    assert flare(capsys, "report", "here")[0] == 0
    assert "mine" not in POLICIES
    code, _, err = flare(capsys, "report", "here", "--plugin", "mine.py")
    assert (code, "SystemExit: executed" in err) == (2, True)


def test_list_says_name_line_options_and_where_from(tmp_path: Path, capsys: Capsys) -> None:
    policy_file(tmp_path / "mine.py")
    kinds = {"policies": "exact", "methods": "flare", "models": "mlp", "data": "synthetic", "codecs": "qsgd"}
    for kind, name in kinds.items():
        code, out, _ = flare(capsys, "list", kind)
        assert code == 0
        assert name in out
        assert "built in" in out
    rows = json.loads(flare(capsys, "list", "policies", "--plugin", "mine.py", "--json")[1])
    assert rows[-1] == {
        "name": "mine",
        "summary": "The first few that fit.",
        "options": [{"name": "number", "default": 2, "doc": "", "must_be": "a whole number"}],
        "from": str(tmp_path / "mine.py"),
    }
    codecs = json.loads(flare(capsys, "list", "codecs", "--json")[1])
    assert [one["name"] for one in codecs] == list(CODECS)
    assert all(one["summary"] and one["from"] == "built in" for one in codecs)
    assert any(one["options"] for one in codecs)
    assert flare(capsys, "list", "nothing")[0] == 2


def test_an_option_that_may_be_anything_is_said_so(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine.py").write_text(
        "import flare\n\n@flare.policy('mine')\ndef mine(problem, *, rank=None, key=b'x'):\n    return [0]\n"
    )
    rows = json.loads(flare(capsys, "list", "policies", "--plugin", "mine.py", "--json")[1])
    assert [one["must_be"] for one in rows[-1]["options"]] == ["any value", "any value but none"]
    assert "# mine: rank = none (any value)\n" in flare(capsys, "config", "--plugin", "mine.py")[1]


def test_both_lists_of_data_sets_are_one(capsys: Capsys) -> None:
    plugin = ["--plugin", str(EXAMPLES / "rings.py")]
    assert flare(capsys, "data", "list", *plugin) == flare(capsys, "list", "data", *plugin)


def test_config_has_a_line_for_every_option_of_what_there_is(tmp_path: Path, capsys: Capsys) -> None:
    out = flare(capsys, "config", "--plugin", str(EXAMPLES / "capped.py"))[1]
    below = out.partition("[learning.options]\n")[2]
    assert "# capped: max_steps = 5 (local steps of a device, at most; a whole number, at least 1)\n" in below
    assert '# flare: tau_bar = "mas" (' in below
    assert "# synthetic: alpha = 1.0 (how much the devices' models differ; a finite number, at least 0" in out
    (tmp_path / "all.toml").write_text(out)
    assert load(tmp_path / "all.toml") == Config(plugins=(str(EXAMPLES / "capped.py"),))


def test_data_of_a_plugin_are_listed_and_shown(capsys: Capsys) -> None:
    plugin = ["--plugin", str(EXAMPLES / "rings.py")]
    assert "rings" in flare(capsys, "data", "list", *plugin)[1]
    shown = flare(capsys, "data", "show", *plugin, "--name", "rings", "--devices", "4", "-o", "samples=100", "--csv")[1]
    assert len(shown.splitlines()) == 5
    wrong = flare(capsys, "data", "show", *plugin, "--name", "rings", "-o", "colour=red")
    assert (wrong[0], "data set 'rings' has no option 'colour'" in wrong[2]) == (2, True)


# --- options ------------------------------------------------------------------------------------------------------


def test_an_option_goes_to_the_part_that_has_it(tmp_path: Path, capsys: Capsys) -> None:
    given = ["--set", "learning.method=fedprox", "--set", "scheduling.policy=random", "--set", "learning.model=mlp"]
    options = ["-o", "prox_mu=0.5", "-o", "num_selected=2", "-o", "hidden=3"]
    assert flare(capsys, "run", *SMALL, *given, *options, "--out", "here")[0] == 0
    config = load(tmp_path / "here" / "config.toml")
    assert config.learning.options == Options(prox_mu=0.5)
    assert config.learning.model_options == Options(hidden=3)
    assert config.scheduling.options == Options(num_selected=2)


def test_an_option_that_two_parts_have_is_refused_with_how_to_write_it(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine.py").write_text(
        "import flare\n@flare.policy('mine')\ndef mine(problem, prox_mu=1.0): return []\n"
    )
    code, _, err = flare(capsys, "run", *MINE, "--set", "learning.method=fedprox", "-o", "prox_mu=2")
    assert code == 2
    assert "policy and method both have an option 'prox_mu'" in err
    assert "--set scheduling.options.prox_mu=2 or --set learning.options.prox_mu=2" in err


@pytest.mark.usefixtures("undrawn")
def test_in_a_comparison_each_method_gets_the_options_that_it_has(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "run.toml").write_text("[learning.options]\nprox_mu = 0.5\n")
    policy_file(tmp_path / "mine.py")
    plugin = ["--plugin", "mine.py", "--policies", "mine"]
    given = ["run.toml", *plugin, "--methods", "flare,fedprox,scaffold", "-o", "tau_bar=mes"]
    assert flare(capsys, "compare", *given, *SMALL, "--out", "here")[0] == 0
    got = {path.parent.name: load(path).learning.options for path in (tmp_path / "here").glob("*/config.toml")}
    assert got == {
        "flare-mine-seed0": Options(tau_bar="mes"),
        "fedprox-mine-seed0": Options(prox_mu=0.5),
        "scaffold-mine-seed0": Options(),
    }
    code, _, err = flare(capsys, "compare", "run.toml", "--methods", "flare,scaffold", *SMALL, "--out", "other")
    assert code == 2
    assert "none of the methods has an option 'prox_mu' (their options: flare: tau_bar; scaffold: none)" in err
    assert not (tmp_path / "other").exists()


# --- hostile files ------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_plugin_is_one_clear_error(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "odd").mkdir()
    for what, path in paths(tmp_path / "odd", ".py").items():
        code, out, err = flare(capsys, "run", *SMALL, "--plugin", str(path), "--out", "here")
        assert (code, out) == (2, ""), what
        assert err.startswith("error: plugin "), what
        assert len(err.splitlines()) == 1, what
        assert not (tmp_path / "here").exists()


def test_a_plugin_that_registers_nothing_is_said_and_used(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine.py").write_text("import flare\n")
    code, _, err = flare(capsys, "run", *SMALL, "--plugin", "mine.py", "--out", "here")
    assert code == 0
    assert "warning: plugin" in err
    assert "registers nothing" in err


def test_two_plugins_with_one_name_are_named_both(tmp_path: Path, capsys: Capsys) -> None:
    policy_file(tmp_path / "mine.py")
    policy_file(tmp_path / "yours.py")
    code, _, err = flare(capsys, "list", "policies", "--plugin", "mine.py", "--plugin", "yours.py")
    assert code == 2
    assert str(tmp_path / "mine.py") in err
    assert str(tmp_path / "yours.py") in err


# --- a plugin that changes ----------------------------------------------------------------------------------------


def begun(folder: Path, plugin: Path, *more: str) -> None:
    """A run of six rounds, left after two."""
    settings = ["wireless.num_devices=6", "wireless.deadline_s=5", "learning.model=logistic", "run.rounds=6", *more]
    task = Task("run", override(Config(plugins=(str(plugin),)), settings), folder)
    begin([task])
    turns = iter(range(100))
    run_tasks([task], Place("cpu"), stopping=lambda: next(turns) >= 3)
    assert len(selected(folder)) == 2


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.usefixtures("undrawn")
def test_a_changed_plugin_is_refused_unless_allowed_and_then_written_down(tmp_path: Path, capsys: Capsys) -> None:
    path = policy_file(tmp_path / "mine.py")
    begun(tmp_path / "run", path, "scheduling.policy=mine")
    before, was = content(tmp_path / "run"), file_checksum(path)
    policy_file(path, order="np.arange(problem.num_devices)[::-1]")
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet")
    assert code == 2
    assert f"its plugin {path} was changed: its SHA-256 was {was} and is {file_checksum(path)}" in err
    assert "--allow-changed-plugin" in err
    assert content(tmp_path / "run") == before
    assert flare(capsys, "run", "--resume", "run", "--quiet", "--allow-changed-plugin")[0] == 0
    assert selected(tmp_path / "run") == [[0, 1]] * 2 + [[4, 5]] * 4
    told = manifest(tmp_path / "run")
    assert told["plugins"] == [{"path": str(path), "sha256": file_checksum(path)}]
    (change,) = told["changed_plugins"]  # type: ignore[misc]
    assert (change["path"], change["was"], change["is"]) == (str(path), was, file_checksum(path))  # type: ignore[has-type]
    assert change["after_rounds"] == 2  # type: ignore[has-type]
    assert flare(capsys, "run", "--resume", "run", "--quiet")[0] == 0  # it is the run's own now
    assert flare(capsys, "report", "run", "--out", "page.html")[0] == 0
    assert "a plugin was changed while it was under way" in (tmp_path / "page.html").read_text()


def test_a_plugin_that_was_put_into_a_run_is_not_executed(tmp_path: Path, capsys: Capsys) -> None:
    """Its configuration is looked at first, also where the manifest names the plugin too."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n")
    run = written(tmp_path / "run", 1, status="interrupted")
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(settings.replace("plugins = []", f"plugins = [{json.dumps(str(evil))}]"))
    told = manifest(run) | {"plugins": [{"path": str(evil), "sha256": file_checksum(evil)}]}
    (run / "manifest.json").write_text(json.dumps(told))
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet")
    assert (code, "was changed since the run began" in err) == (2, True)
    assert not (tmp_path / "executed").exists()


def test_a_changed_plugin_that_fails_leaves_the_run_as_it_was(tmp_path: Path, capsys: Capsys) -> None:
    path = policy_file(tmp_path / "mine.py")
    begun(tmp_path / "run", path, "scheduling.policy=mine")
    text = path.read_text()
    policy_file(path, order="np.array([999])")
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet", "--allow-changed-plugin")
    assert (code, "mine" in err) == (2, True)
    path.write_text(text)
    assert flare(capsys, "run", "--resume", "run", "--quiet")[0] == 0
    assert selected(tmp_path / "run") == [[0, 1]] * 6
    assert "changed_plugins" not in manifest(tmp_path / "run")


def test_a_run_that_has_ended_is_not_said_to_go_on_with_a_changed_plugin(tmp_path: Path, capsys: Capsys) -> None:
    path = policy_file(tmp_path / "mine.py")
    begun(tmp_path / "run", path, "scheduling.policy=mine")
    assert flare(capsys, "run", "--resume", "run", "--quiet")[0] == 0
    before = manifest(tmp_path / "run")
    policy_file(path, order="np.arange(problem.num_devices)[::-1]")
    assert flare(capsys, "run", "--resume", "run", "--quiet", "--allow-changed-plugin")[0] == 0
    after = manifest(tmp_path / "run")  # nothing was computed by the new file: the old one is the run's
    assert (after["plugins"], after["identity"], after["status"]) == (before["plugins"], before["identity"], "finished")
    assert "changed_plugins" not in after
    assert selected(tmp_path / "run") == [[0, 1]] * 6


@pytest.mark.parametrize("name", ["policy", "method", "model", "dataset", "codec"])
def test_a_decorator_without_a_name_says_how_it_is_written(name: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine.py").write_text(f"import flare\n\n@flare.{name}\ndef mine(x):\n    return [0]\n")
    code, _, err = flare(capsys, "list", "policies", "--plugin", "mine.py")
    assert code == 2
    assert f'@flare.{name} above mine has no name; write @flare.{name}("NAME")' in err


def test_a_missing_plugin_is_refused_whatever_is_allowed(tmp_path: Path, capsys: Capsys) -> None:
    path = policy_file(tmp_path / "mine.py")
    begun(tmp_path / "run", path, "scheduling.policy=mine")
    before = content(tmp_path / "run")
    path.rename(tmp_path / "aside.py")
    for more in ([], ["--allow-changed-plugin"]):
        code, _, err = flare(capsys, "run", "--resume", "run", "--quiet", *more)
        assert code == 2
        assert f"its plugin {path} cannot be read any more (its SHA-256 was" in err
    assert content(tmp_path / "run") == before
    (tmp_path / "aside.py").rename(path)
    assert flare(capsys, "run", "--resume", "run", "--quiet")[0] == 0
    assert selected(tmp_path / "run") == [[0, 1]] * 6


def test_a_plugin_that_was_moved_is_taken_from_where_it_is_now(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_sent", {})
    path = policy_file(tmp_path / "mine.py")
    begun(tmp_path / "run", path, "scheduling.policy=mine")
    before = content(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "mine.py")
    assert "or say with --plugin FILE where it is now" in flare(capsys, "run", "--resume", "run", "--quiet")[2]
    other = policy_file(tmp_path / "other.py")
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet", "--plugin", str(other))
    assert (code, f"none of those of run have that name; its plugins are: {path}" in err) == (2, True)
    (tmp_path / "changed").mkdir()
    changed = policy_file(tmp_path / "changed" / "mine.py", order="np.arange(problem.num_devices)[::-1]")
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet", "--plugin", str(changed))
    assert (code, f"its plugin {path} was changed" in err) == (2, True)
    assert content(tmp_path / "run") == before
    assert flare(capsys, "run", "--resume", "run", "--quiet", "--plugin", str(moved))[0] == 0
    assert selected(tmp_path / "run") == [[0, 1]] * 6


def test_other_samples_of_a_changed_plugin_are_another_run_all_the_same(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "rings.py"
    shutil.copy(EXAMPLES / "rings.py", path)
    begun(tmp_path / "run", path, "data.name=rings", "data.options.samples=200", "wireless.batch_size=5")
    before = content(tmp_path / "run")
    path.write_text(path.read_text().replace("1.0 + label", "2.0 + label"))
    code, _, err = flare(capsys, "run", "--resume", "run", "--quiet", "--allow-changed-plugin")
    assert (code, "its samples are others" in err) == (2, True)
    assert content(tmp_path / "run") == before


def test_what_a_resumed_run_is_told_of_plugins(tmp_path: Path, capsys: Capsys) -> None:
    assert "give --resume DIR alone (or with --plugin" in flare(capsys, "run", "--resume", "run", "--out", "b")[2]
    assert "give it with --resume DIR" in flare(capsys, "run", "--allow-changed-plugin")[2]


def test_what_a_plugin_prints_is_no_result(tmp_path: Path, capsys: Capsys) -> None:
    policy_file(tmp_path / "mine.py", order="print('hello') or np.arange(problem.num_devices)")
    code, out, err = flare(capsys, "run", *MINE, *SMALL, "--json", "--out", "run")
    assert code == 0
    assert json.loads(out)["rounds"] == 2
    assert set(err.splitlines()) == {"hello"}


def test_a_run_whose_policy_is_in_no_file_is_continued_in_python(tmp_path: Path, capsys: Capsys) -> None:
    @policy("typed")
    def typed(problem: RoundProblem) -> list[int]:
        """The first."""
        return [0]

    config = override(Config(), ["run.rounds=2", "learning.model=logistic", "scheduling.policy=typed"])
    stop_after(config, tmp_path / "run", 1)
    del POLICIES["typed"]
    before = content(tmp_path / "run")
    code, out, err = flare(capsys, "run", "--resume", "run")
    assert (code, out) == (2, "")
    assert "its policy 'typed' was registered in Python and is in no plugin; continue it in Python" in err
    assert content(tmp_path / "run") == before


def test_the_processes_of_a_sweep_have_the_plugins(tmp_path: Path) -> None:
    path = policy_file(tmp_path / "mine.py")
    settings = ["wireless.num_devices=6", "wireless.deadline_s=5", "learning.model=logistic", "run.rounds=2"]
    base = override(Config(plugins=(str(path),)), [*settings, "scheduling.policy=mine"])
    tasks = [Task(str(seed), override(base, [f"seed={seed}"]), tmp_path / str(seed)) for seed in range(2)]
    run_tasks(tasks, Place("cpu", processes=2))
    assert [selected(task.folder) for task in tasks] == [[[0, 1], [0, 1]]] * 2
    assert "mine" not in POLICIES  # this process had no need of it


FAULTY = {
    "policy": '@flare.policy("bad")\ndef bad(problem):\n    """Bad."""\n    return problem.nosuch\n',
    "method": (
        "from dataclasses import dataclass\nfrom flare.learning.methods.base import PlainMethod\n"
        '@flare.method("bad")\n@dataclass(frozen=True)\nclass Bad(PlainMethod):\n    """Bad."""\n'
        "    def rules(self, state, now, common_gradient):\n        return 1 / 0\n"
    ),
    "model": '@flare.model("bad")\ndef bad(sample_shape, num_classes):\n    """Bad."""\n    return nn.Linear(2, 3)\n',
    "exit": 'import sys\n@flare.policy("bad")\ndef bad(problem):\n    """Bad."""\n    sys.exit(0)\n',
    "odd": 'class O(BaseException): pass\n@flare.policy("bad")\ndef bad(problem):\n    """Bad."""\n    raise O("x")\n',
    "data": '@flare.dataset("bad")\ndef bad():\n    """Bad."""\n    return open("nofile.csv")\n',
}


@pytest.mark.parametrize(
    ("kind", "setting", "words"),
    [
        ("policy", "scheduling.policy=bad", "AttributeError: 'RoundProblem' object has no attribute 'nosuch'"),
        ("exit", "scheduling.policy=bad", "it ended the program (exit code 0); raise a ValueError instead"),
        ("odd", "scheduling.policy=bad", "O: x"),
        ("method", "learning.method=bad", "ZeroDivisionError: division by zero"),
        ("model", "learning.model=bad", "NameError: name 'nn' is not defined"),
        ("data", "data.name=bad", "FileNotFoundError: [Errno 2] No such file or directory: 'nofile.csv'"),
    ],
)
def test_an_error_in_the_code_of_a_plugin_names_its_file_and_line(
    kind: str, setting: str, words: str, tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(f"import flare\n{FAULTY[kind]}")
    line = len(path.read_text().splitlines())
    code, out, err = flare(capsys, "run", "--quiet", "--plugin", str(path), "--set", setting, "--set", "run.rounds=2")
    assert (code, out) == (2, "")
    assert err == f"error: plugin {path}, line {line}: {words}\n"
    if kind == "policy":
        code, _, err = flare(capsys, "schedule", "--cell", "paper", "--plugin", str(path), "--policy", "bad")
        assert (code, err) == (2, f"error: plugin {path}, line {line}: {words}\n")


METHOD = """
import flare
from dataclasses import dataclass
from flare.learning.methods.base import PlainMethod

@flare.method("bad")
@dataclass(frozen=True)
class Bad(PlainMethod):
    def rules(self, state, now, common_gradient):
        return []
"""
ENDLESS = """
import flare
from dataclasses import dataclass
from flare.learning.methods import PlainMethod, equal_rates

class Reducer:
    def add(self, device, rule, update):
        pass

    def end(self):
        pass

@flare.method("bad")
@dataclass(frozen=True)
class Bad(PlainMethod):
    def rules(self, state, now, common_gradient):
        return equal_rates(now)

    def reducer(self, state, now):
        return Reducer()
"""
DATA = """
import numpy as np
import flare
from flare.data import Dataset

@flare.dataset("bad")
def bad():
    x, y = np.full((40, 3), np.nan, np.float32), np.arange(40) % 2
    return Dataset("bad", x, y, x, y, num_classes=2)
"""


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        (METHOD, "learning.method=bad", "method 'bad': its rules() answered 0 rules; it must answer a list with"),
        (
            ENDLESS.replace("return equal_rates(now)", "return [LocalRule(0.1, 0) for _ in now.selected]").replace(
                "import flare", "import flare\nfrom flare.learning.job import LocalRule", 1
            ),
            "learning.method=bad",
            "method 'bad': its rules() answered one of 0 steps; a selected device does 1 or more",
        ),
        (
            METHOD + "\n    def steps(self, tau):\n        return []\n",
            "learning.method=bad",
            "method 'bad': its steps() answered []; it must answer an array with a number greater than 0",
        ),
        (
            METHOD + "\n    def reference_steps(self, state, now):\n        return float('nan')\n",
            "learning.method=bad",
            "method 'bad': its reference_steps() answered nan; it must answer a finite number greater than 0",
        ),
        (
            ENDLESS,
            "learning.method=bad",
            "method 'bad': the end() of its reducer answered None; it must answer a pair: the new global weights, a",
        ),
        (DATA, "data.name=bad", "data set 'bad': train_x: sample 0 has a value that is not finite"),
    ],
)
def test_what_a_plugin_gives_is_checked(text: str, setting: str, words: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    command = ["run", "--quiet", "--plugin", str(path), "--set", "wireless.num_devices=4", "--set", setting]
    code, out, err = flare(capsys, *command, "--set", "run.rounds=2", "--set", "learning.model=logistic")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {words}")


@pytest.mark.parametrize(
    "text",
    [
        "class Odd(BaseException): pass\nraise Odd('x')",
        "raise GeneratorExit",
        "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd",
        "raise BaseExceptionGroup('x', [KeyboardInterrupt()])",
    ],
)
def test_whatever_a_plugin_raises_when_it_is_loaded_is_one_line(text: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "odd.py"
    path.write_text(text)
    code, out, err = flare(capsys, "list", "policies", "--plugin", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: plugin {path}, line ")
    assert err.count("\n") == 1
