"""A run folder knows what its run is: it is not continued with other data, another model or other code."""

from __future__ import annotations

import importlib
import itertools
import sys
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


def test_what_own_code_uses_by_name_belongs_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant, a helper, a module beside it and what is around a function: a change of any makes it another."""
    texts = {
        "K = %d\ndef mine(x):\n    return x + K\n": (1, 2),
        "K = (1, %d)\nclass mine:\n    def f(self, x):\n        return [K for _ in x]\n": (1, 2),
        "def help(x):\n    return x + %d\ndef mine(x):\n    return help(x)\n": (1, 2),
        "def around(k):\n    def mine(x):\n        return x + k\n    return mine\nmine = around(%d)\n": (1, 2),
        "import functools\ndef f(x, k):\n    return x + k\nhelp = functools.partial(f, k=%d)\n"
        "def mine(x):\n    return help(x)\n": (1, 2),
        "import math\nimport numpy as np\nK = %d\ndef mine(x):\n    return np.sum(x) + math.pi * K\n": (1, 2),
    }
    for text, values in texts.items():
        first, same, other = (typed(text % value) for value in (values[0], *values))
        assert text_of(first) == text_of(same) != text_of(other), text
        assert len(text_of(first)) < 2000, "not what is installed"
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in (1, 2):
        (tmp_path / "helps_mine.py").write_text(f"K = {number}  # {'longer' * number}\n")
        monkeypatch.delitem(sys.modules, "helps_mine", raising=False)
        importlib.invalidate_caches()
        found.append(text_of(typed("import helps_mine\ndef mine(x):\n    return x + helps_mine.K\n")))
    assert found[0] != found[1]


def test_what_changes_while_a_run_goes_on_does_not_make_its_code_another() -> None:
    mine = typed(
        "calls, seen, K = 0, [], 1\ndef count():\n    global calls\n    calls += 1\n"
        "def mine(x):\n    count()\n    seen.append(x)\n    return x + calls + K\n"
    )
    before = text_of(mine)
    mine(1)
    assert text_of(mine) == before
