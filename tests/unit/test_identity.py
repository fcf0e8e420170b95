"""A run folder knows what its run is: it is not continued with other data, another model or other code."""

from __future__ import annotations

import importlib
import itertools
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from flare.config import Config, override
from flare.data.dataset import Dataset
from flare.records import RunFolder
from flare.records.run import read_run
from flare.rng import stream
from flare.rounds.code_text import source_of, text_of
from flare.scheduling import POLICIES, admit, policy
from flare.simulation import Member, Simulation, drive, resume
from tests import ready_python

CONFIG = override(
    Config(),
    [
        "wireless.num_devices=4",
        "wireless.deadline_s=1",
        "learning.model=logistic",
        "run.rounds=6",
        "learning.device=cpu",
    ],
)


def own_data(seed: int = 0) -> tuple[Dataset, list[np.ndarray]]:
    """As many features and classes as the digits have, so that nothing but the folder can tell them apart."""
    draw = stream(seed, "own data")
    x = draw.normal(size=(200, 1, 8, 8)).astype(np.float32)
    y = np.arange(200) % 10
    return Dataset("mine", x[:160], y[:160], x[160:], y[160:], num_classes=10), np.split(np.arange(160), 4)


def begun(path: Path, config: Config = CONFIG, **own: object) -> None:
    """A run in the folder that was stopped after two rounds."""
    turns = itertools.count()
    with RunFolder.create(path, config) as folder:
        drive([Member(Simulation(config, **own), folder)], stopping=lambda: next(turns) >= 2)  # type: ignore[arg-type]


def continued(path: Path, config: Config = CONFIG, **own: object) -> list[dict[str, object]]:
    with RunFolder.open(path) as folder:
        member = Member(Simulation(config, **own), folder)  # type: ignore[arg-type]
        resume(member)
        drive([member])
        return folder.records()


def test_a_run_with_its_own_data_is_not_continued_with_the_digits(tmp_path: Path) -> None:
    dataset, held = own_data()
    begun(tmp_path / "run", dataset=dataset, held=held)
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    command = [sys.executable, "-m", "flare", "run", "--resume", str(tmp_path / "run")]
    done = ready_python.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "its data is own data mine, 160 samples, 10 classes, and here it is digits" in " ".join(done.stderr.split())
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before
    assert len(continued(tmp_path / "run", dataset=dataset, held=held)) == 6


def test_a_run_begun_when_own_data_had_no_name_is_continued_with_the_same_samples(tmp_path: Path) -> None:
    dataset, held = own_data()
    begun(tmp_path / "run", dataset=replace(dataset, name="own"), held=held)
    assert read_run(tmp_path / "run").data == "own data, 160 samples, 10 classes"
    assert len(continued(tmp_path / "run", dataset=dataset, held=held)) == 6


def test_other_samples_another_division_or_another_model_is_another_run(tmp_path: Path) -> None:
    dataset, held = own_data()
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    begun(tmp_path / "run", dataset=dataset, held=held, module=module)
    other, _ = own_data(seed=1)
    shifted = np.split(np.roll(np.arange(160), 1), 4)
    other_start = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    other_layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())
    other_layers.load_state_dict(module.state_dict())
    for part, changed in (
        ("its samples are others", {"dataset": other, "held": held, "module": module}),
        ("divided otherwise", {"dataset": dataset, "held": shifted, "module": module}),
        ("start weights of its model are others", {"dataset": dataset, "held": held, "module": other_start}),
        ("layers of its model are others", {"dataset": dataset, "held": held, "module": other_layers}),
        ("its model is own model Sequential, 650 weights, and here it is logistic", {"dataset": dataset, "held": held}),
    ):
        with pytest.raises(ValueError, match=f"cannot be continued here: .*{part}"):
            continued(tmp_path / "run", **changed)
    assert len(continued(tmp_path / "run", dataset=dataset, held=held, module=module)) == 6


def test_another_policy_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    config = override(CONFIG, ["scheduling.policy=mine"])
    try:

        @policy("mine")
        def strongest(problem):  # type: ignore[no-untyped-def]
            return admit(problem, np.argsort(-problem.snr_hz))

        begun(tmp_path / "run", config)
        del POLICIES["mine"]

        @policy("mine")
        def weakest(problem):  # type: ignore[no-untyped-def]
            return admit(problem, np.argsort(problem.snr_hz))

        with pytest.raises(ValueError, match="the code of its policy is another"):
            continued(tmp_path / "run", config)
    finally:
        del POLICIES["mine"]


def test_a_folder_that_was_left_before_the_first_round_can_be_begun(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", CONFIG).close()
    assert len(continued(tmp_path / "run")) == 6


def typed(text: str) -> Any:
    """What a text names `mine`."""
    there: dict[str, Any] = {}
    exec(compile(text, "<stdin>", "exec"), there)
    return there["mine"]


def test_code_without_a_source_is_told_apart_by_what_it_was_compiled_to() -> None:
    one, same, other = (typed(f"def mine(x, y=1):\n    return x + {n}\n") for n in (1, 1, 2))
    assert source_of(one) == source_of(same) != source_of(other)
    first, second = (typed(f"class mine:\n    def f(self):\n        return lambda: {n}\n") for n in (1, 2))
    assert source_of(first) not in ("", source_of(second))
    for text in (
        *("def mine(x=%d): pass", "def mine(*, x=%d): pass", "def mine(x=(1, %d)): pass"),
        *("class mine:\n    a = %d", "class mine:\n    a = property(lambda self: %d)"),
        *("class mine:\n    a = staticmethod(lambda: %d)", "class mine:\n    a = classmethod(lambda own: %d)"),
        "from dataclasses import dataclass\n@dataclass\nclass mine:\n    a: int = %d",
    ):
        first, same, second = (typed(text % n) for n in (1, 1, 2))
        assert source_of(first) == source_of(same) != source_of(second), text
        assert " at 0x" not in source_of(first)
    one.__module__ = None
    assert "0x" not in source_of(one)


def written(folder: Path, text: str) -> Any:
    """What a module of this text names `mine`, in a file, under a name that is always the same."""
    (folder / "own_code.py").write_text(text)
    sys.modules.pop("own_code", None)
    importlib.invalidate_caches()
    linecache.checkcache()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return importlib.import_module("own_code").mine
    finally:
        sys.dont_write_bytecode = before


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules of a user's own."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_code", "helps_mine"):
        sys.modules.pop(name, None)


USES = {
    "a constant": "K = %d\ndef mine(x):\n    return x + K\n",
    "a table": "K = [1, %d]\ndef mine(x):\n    return [lambda: K for _ in x]\n",
    "an object": "class C:\n    def __init__(self, k):\n        self.k = k\nc = C(%d)\ndef mine(x):\n    return c.k\n",
    "a helper": "def help(x):\n    return x + %d\ndef mine(x):\n    return help(x)\n",
    "a base": "class Base:\n    def f(self):\n        return %d\nclass mine(Base):\n    pass\n",
    "a closure": "def around(k):\n    def mine(x):\n        return x + k\n    return mine\nmine = around(%d)\n",
    "one of two closures": "def by(k):\n    return lambda x: x * k\none, two = by(1), by(%d)\n"
    "def mine(x):\n    return one(x) + two(x)\n",
    "a partial": "import functools\ndef f(x, k):\n    return x + k\nhelp = functools.partial(f, k=%d)\n"
    "def mine(x):\n    return help(x)\n",
    "beside what is installed": "import math\nimport numpy as np\nimport torch\nK = %d\n"
    "def mine(x):\n    return np.sum(x) + math.pi * K + torch.nn.Linear(1, 1)\n",
}


@pytest.mark.parametrize("what", USES)
def test_what_own_code_uses_by_name_belongs_to_it(what: str, beside: Path) -> None:
    first, same, other = (text_of(written(beside, USES[what] % value)) for value in (1, 1, 2))
    assert first == same != other
    assert len(first) < 2000, "not what is installed"


def test_a_module_of_a_users_own_belongs_to_what_uses_it(beside: Path) -> None:
    found = []
    for number in (1, 2):
        (beside / "helps_mine.py").write_text(f"K = {number}  # {'longer' * number}\n")
        sys.modules.pop("helps_mine", None)
        found.append(text_of(written(beside, "import helps_mine\ndef mine(x):\n    return x + helps_mine.K\n")))
    assert found[0] != found[1]
    (beside / "helps_mine.py").unlink()
    linecache.checkcache()
    assert text_of(sys.modules["own_code"].mine)  # and where its file has gone


def test_what_differs_between_processes_or_changes_while_a_run_goes_on_is_not_told(beside: Path) -> None:
    text = (
        "import time\ncalls, seen, began = 0, [], time.time()\nclass Count:\n    def up(self):\n        global calls\n"
        "        calls += 1\nCOUNT = Count()\ndef around():\n    n = 0\n    def bump():\n        nonlocal n\n"
        "        n += 1\n    def mine(x):\n        bump()\n        COUNT.up()\n        seen.append(x)\n"
        "        return x + calls + n + began\n    return mine\nmine = around()\n"
    )
    mine = written(beside, text)
    before = text_of(mine)
    mine(1)
    assert text_of(mine) == before == text_of(written(beside, text))


def test_the_text_of_code_is_the_same_in_every_process(beside: Path) -> None:
    (beside / "own_code.py").write_text(USES["one of two closures"] % 2)
    program = "import own_code, flare.rounds.code_text as c; print(repr(c.text_of(own_code.mine)))"
    told = set()
    for seed in ("0", "1", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(beside), *sys.path])}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        told.add(done.stdout)
    assert len(told) == 1
