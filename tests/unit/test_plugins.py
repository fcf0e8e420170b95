"""Registering: what a second registration of a name means, and files that are executed for what they register."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from torch import nn

import flare
from flare.config import Config, DataConfig, LearningConfig, Limits, Options, load, override, setting
from flare.data import Dataset, from_arrays
from flare.data.sources import SOURCES, load_dataset
from flare.learning.methods import METHODS, PlainMethod, Round, equal_rates, make_method
from flare.learning.models import MODELS, make_model
from flare.plugins import file_checksum, load_plugin, loaded_checksum
from flare.registry import BUILT_IN, INTERACTIVE, REGISTRIES
from flare.scheduling import POLICIES
from flare.simulation import Simulation
from tests.plugin_files import policy_file, registries_as_they_were


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with registries_as_they_were():
        yield


def register_in_cell(answer: int, name: str = "mine") -> None:
    """What a notebook does: code that is in no file, in the module __main__."""
    code = f"import flare\n@flare.policy({name!r})\ndef chosen(problem):\n    return [{answer}]\n"
    exec(compile(code, "<ipython-input-3>", "exec"), {"__name__": "__main__"})


def test_a_cell_that_is_run_again_replaces_what_it_registered() -> None:
    register_in_cell(0)
    register_in_cell(1)
    assert POLICIES["mine"].function(None) == [1]
    assert POLICIES.origin("mine") == INTERACTIVE
    assert str(POLICIES.origin("mine")) == "interactive code"


def test_a_name_of_two_files_is_refused_with_both(tmp_path: Path) -> None:
    one, two = policy_file(tmp_path / "one.py"), policy_file(tmp_path / "two.py")
    load_plugin(one)
    with pytest.raises(ValueError, match="there is already a policy 'mine'") as raised:
        load_plugin(two)
    assert str(one) in str(raised.value)
    assert str(two) in str(raised.value)
    with pytest.raises(ValueError, match=r"one is of .*one\.py, and this one is of interactive code"):
        register_in_cell(0)
    assert POLICIES.origin("mine").path == str(one.resolve())


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (lambda: flare.policy("exact")(lambda problem: []), "policy 'exact'"),
        (lambda: flare.method("fedavg")(type("Mine", (PlainMethod,), {"rules": None})), "method 'fedavg'"),
        (lambda: flare.model("mlp")(lambda sample_shape, num_classes: nn.Identity()), "model 'mlp'"),
        (lambda: flare.dataset("digits")(lambda: None), "data set 'digits'"),
    ],
)
def test_a_name_of_flares_own_cannot_be_taken(register: Callable[[], Any], kind: str) -> None:
    with pytest.raises(ValueError, match=rf"there is already a {kind}: flare has one of its own \(built in\)"):
        register()


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", "-x", "a:b", "a,b", "a\nb", "\x1b[31m", "x" * 65, " a", 3])
def test_a_name_that_could_be_no_folder_and_no_argument_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="is no name of a policy; write a word"):
        flare.policy(name)(lambda problem: [])


def test_everything_that_flare_has_is_built_in_and_says_what_it_is() -> None:
    for registry in REGISTRIES.values():
        for name, thing in registry.items():
            assert registry.origin(name) == BUILT_IN
            assert thing.name == name
            assert 10 < len(thing.summary) < 130
    built_in = {"flare", "fedavg", "fedavg-fixed", "fedprox", "fednova", "scaffold", "fedlin"}
    since = {"fedavgm", "fedadam", "fedyogi", "fedsam", "moon", "heterofl", "fedpaq", "fedbuff"}
    assert set(METHODS) == built_in | since


def test_flare_is_imported_without_torch_and_keeps_its_methods_where_a_plugin_that_brings_it_fails(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("import flare\nflare.method\n1 / 0\n")
    code = (
        "import sys, flare\nflare.dataset, dir(flare)\nassert 'torch' not in sys.modules\n"
        "from flare.plugins import load_plugin\n"
        "try:\n    load_plugin('mine.py')\nexcept ValueError: pass\n"
        "from flare.learning.methods import METHODS\nassert 'fedavg' in METHODS\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        flare.nothing  # noqa: B018


# --- methods, models, data sets -----------------------------------------------------------------------------------


def test_the_fields_of_a_method_are_its_options() -> None:
    @flare.method("mine")
    @dataclass(frozen=True)
    class Mine(PlainMethod):
        """My own."""

        mu: float = setting(0.5, "weight of the pull", at_least=0.0)
        plain: int = 3

        def rules(self, state: Any, now: Round, common_gradient: Any) -> Any:
            return equal_rates(now, mu=self.mu)

    assert METHODS["mine"].summary == "My own."
    assert {name: (one.default, one.doc) for name, one in METHODS["mine"].options.items()} == {
        "mu": (0.5, "weight of the pull"),
        "plain": (3, ""),
    }
    assert make_method(LearningConfig(method="mine", options=Options(mu=1))) == Mine(1.0, 3)
    for wrong, says in (
        ({"mu": -1.0}, "option 'mu' of method 'mine' is -1.0; it must be a finite number, at least 0"),
        ({"mu": "much"}, "option 'mu' of method 'mine' is 'much'"),
        ({"nu": 1}, r"method 'mine' has no option 'nu' \(its options: mu, plain\)"),
    ):
        with pytest.raises(ValueError, match=says):
            make_method(LearningConfig(method="mine", options=Options(wrong)))


def test_a_class_that_cannot_be_a_method_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ValueError, match=r"class Nothing lacks .*rules.*PlainMethod"):
        flare.method("one")(type("Nothing", (), {}))
    with pytest.raises(ValueError, match="a method is a class"):
        flare.method("two")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="write @method above @dataclass"):
        flare.method("three")(type("Early", (PlainMethod,), {"rules": None, "mu": setting(0.1, "early")}))

    @dataclass(frozen=True)
    class Clash(PlainMethod):
        uplink_models: int = 3

        def rules(self, state: Any, now: Round, common_gradient: Any) -> Any:
            return equal_rates(now)

    with pytest.raises(ValueError, match="its option 'uplink_models' has the name of a part of every method"):
        flare.method("four")(Clash)
    assert not {"one", "two", "three", "four"} & set(METHODS)


def test_a_model_has_options_beside_the_shapes() -> None:
    @flare.model("mine")
    def mine(sample_shape: tuple[int, ...], num_classes: int, *, width: int = 4) -> nn.Module:
        """My own."""
        return nn.Sequential(nn.Linear(sample_shape[0], width), nn.Linear(width, num_classes))

    assert make_model("mine", (3,), 2, seed=0, options={"width": 7})[0].out_features == 7  # type: ignore[index]
    assert MODELS["mine"].summary == "My own."
    with pytest.raises(ValueError, match=r"model 'mine' has no option 'depth' \(its options: width\)"):
        make_model("mine", (3,), 2, seed=0, options={"depth": 7})
    with pytest.raises(ValueError, match="must take the sample_shape and the num_classes as its first arguments"):
        flare.model("less")(lambda sample_shape: nn.Identity())
    assert make_model("mlp", (3,), 2, seed=0, options={"hidden": 5})[1].out_features == 5  # type: ignore[index]


def test_a_data_set_is_handed_what_it_asks_for_by_name() -> None:
    asked: list[dict[str, Any]] = []

    @flare.dataset("mine")
    def mine(
        *, seed: int, num_devices: int, folder: str, noise: Annotated[float, "how much", Limits(at_least=0.0)] = 0.1
    ) -> Dataset:
        """My own."""
        asked.append({"seed": seed, "num_devices": num_devices, "folder": folder, "noise": noise})
        x = np.arange(8.0).reshape(4, 2)
        return from_arrays(x, [0, 1, 0, 1], x, [0, 1, 0, 1])

    config = DataConfig(name="mine", folder="there", options=Options(noise=1))
    load_dataset(config, num_devices=3, seed=5)
    assert asked == [{"seed": 5, "num_devices": 3, "folder": os.path.abspath("there"), "noise": 1.0}]
    assert SOURCES["mine"].of_run
    with pytest.raises(ValueError, match="option 'noise' of data set 'mine' is -1; it must be a finite number, at lea"):
        load_dataset(DataConfig(name="mine", options=Options(noise=-1)), num_devices=3, seed=5)
    flare.dataset("wrong")(lambda: [1, 2])  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"data set 'wrong' returned a list; it must return a flare\.data\.Dataset"):
        load_dataset(DataConfig(name="wrong"), num_devices=3, seed=5)


# --- files --------------------------------------------------------------------------------------------------------


def test_a_plugin_is_executed_once_until_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = policy_file(tmp_path / "mine.py")
    path.write_text(path.read_text() + "\nprint('executed')\n")
    first = load_plugin(path)
    assert (first.path, first.registered) == (str(path), (("policy", "mine"),))
    assert first.sha256 == file_checksum(path) == loaded_checksum(path)
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert load_plugin(link) is load_plugin(path) is first
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "executed\n")  # what is printed shall not end up in --json
    path.write_text(path.read_text().replace('"mine"', '"other"'))
    assert load_plugin(path).registered == (("policy", "other"),)
    assert "mine" not in POLICIES  # it is not in the file any more
    assert loaded_checksum(tmp_path / "none.py") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import flare\n1 / 0\n", r"mine\.py, line 3: ZeroDivisionError: division by zero"),
        ("def broken(:\n", r"mine\.py, line 2: SyntaxError: "),
        ("import flare\nimport nothing_of_that_name\n", r"line 3: ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(3)\n", r"line 3: SystemExit: 3"),
        ("import flare\nflare.policy('exact')(lambda problem: [])\n", r"line 3: there is already a policy 'exact'"),
        ("import flare\nflare.policy('a/b')(lambda problem: [])\n", r"line 3: 'a/b' is no name of a policy"),
        ("def f():\n    raise KeyError('x')\nf()\n", r"line 3: KeyError: 'x'"),
        ("raise ValueError('" + "x" * 5000 + "')\n", r"line 2: x+…x+$"),
    ],
)
def test_what_goes_wrong_in_a_plugin_is_one_line_and_nothing_of_it_stays(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import flare; flare.policy('early')(lambda problem: [])\n" + text)
    modules = set(sys.modules)
    with pytest.raises(ValueError, match=says) as raised:
        load_plugin(path)
    assert str(raised.value).startswith(f"plugin {path}")
    assert len(str(raised.value)) < 800
    assert "early" not in POLICIES
    assert not {name for name in set(sys.modules) - modules if name.startswith("flare_plugin")}


@pytest.mark.parametrize("content", ["# ä".encode("latin-1"), b"\0", b"# -*- coding: nonsense -*-\n"])
def test_a_file_that_is_no_text_is_no_plugin(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    with pytest.raises(ValueError, match=r"plugin .*mine\.py"):
        load_plugin(tmp_path / "mine.py")


def test_a_plugin_that_fails_when_it_is_loaded_again_leaves_what_was_there(tmp_path: Path) -> None:
    path = policy_file(tmp_path / "mine.py")
    load_plugin(path)
    before = POLICIES["mine"]
    path.write_text(path.read_text() + "\n1 / 0\n")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        load_plugin(path)
    assert POLICIES["mine"] is before


def test_one_name_twice_in_one_file_is_an_error(tmp_path: Path) -> None:
    path = policy_file(tmp_path / "mine.py")
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match=r"the policy 'mine' is registered twice in .*mine\.py"):
        load_plugin(path)
    assert "mine" not in POLICIES


# --- configurations -----------------------------------------------------------------------------------------------


def test_the_plugins_of_a_file_are_seen_from_its_folder_and_not_executed_by_reading_it(tmp_path: Path) -> None:
    policy_file(tmp_path / "parts" / "mine.py")
    (tmp_path / "run.toml").write_text('plugins = ["parts/mine.py"]\n')
    config = load(tmp_path / "run.toml")
    assert config.plugins == (str(tmp_path / "parts" / "mine.py"),)
    assert "mine" not in POLICIES
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.toml").write_text((tmp_path / "run.toml").read_text())
    moved = load(tmp_path / "elsewhere" / "run.toml")
    with pytest.raises(ValueError, match=r"plugin .*elsewhere/parts/mine\.py: cannot be read \(No such file"):
        Simulation(moved)
    assert Config(plugins=["a.py", "./a.py"]).plugins == (os.path.abspath("a.py"),)  # type: ignore[arg-type]
    assert override(Config(), ["plugins=a.py"]).plugins == (os.path.abspath("a.py"),)
    with pytest.raises(ValueError, match="plugins is 3; it must be a list of texts in quotes"):
        Config(plugins=3)  # type: ignore[arg-type]


def test_whoever_builds_a_run_from_a_configuration_has_its_plugins(tmp_path: Path) -> None:
    path = policy_file(tmp_path / "mine.py")
    config = override(
        Config(plugins=(str(path),)),
        ["scheduling.policy=mine", "wireless.num_devices=4", "wireless.deadline_s=5", "learning.model=logistic"],
    )
    simulation = Simulation(config)
    assert simulation.plan(simulation.start()).selected.tolist() == [0, 1]
    assert simulation.code_files == {"method code": None, "policy code": str(path.resolve()), "layers": None}
    assert "policy code" in simulation.identity
    pytest.importorskip("flwr")
    from flare.flower import FlareStrategy

    del POLICIES["mine"]
    FlareStrategy(config)
    assert "mine" in POLICIES


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[learning]\ntau_bar = "mes"\n', "learning.options.tau_bar=mes"),
        ('[learning]\nmethod = "fedprox"\nprox_mu = 0.5\n', "learning.options.prox_mu=0.5"),
        ('[learning]\nmethod = "fednova"\ntau_eff = "mas"\n', "learning.options.tau_eff=mas"),
        ('[learning]\nmethod = "fedavg-fixed"\nfixed_steps = 4\n', "learning.options.fixed_steps=4"),
        ('[data]\nname = "synthetic"\nsynthetic_alpha = 0.0\n', "data.options.alpha=0.0"),
    ],
)
def test_keys_that_became_options_are_read_in_old_files(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(old)
    config = load(tmp_path / "old.toml")
    section = new.partition(".")[0]
    assert getattr(config, section).options == getattr(override(Config(), [new]), section).options
    key = old.strip().splitlines()[-1].partition(" ")[0]
    with pytest.raises(ValueError, match=rf"{section}\.{key} has moved: .* {new.partition('=')[0]}=\.\.\."):
        override(Config(), [f"{section}.{key}=1"])


def test_an_old_key_of_another_method_is_kept_for_comparisons_and_left_out_of_an_old_run(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text('[learning]\nmethod = "flare"\ntau_bar = "mas"\nprox_mu = 0.5\nfixed_steps = 3\n')
    assert load(path).learning.options == Options(prox_mu=0.5)  # what was at its default was not said
    assert load(path, of_run=True).learning.options == Options()
