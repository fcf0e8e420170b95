"""Every setting of a run: frozen dataclasses, read from a TOML file once at the edge.

A setting is declared in one line with its default, what it means and what it may be. Checks, error messages and the
complete file with a comment for each key (`to_toml`) all come from that line.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Limits:
    """What a setting may be, beside its type."""

    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    also: tuple[str, ...] = ()  # words that may stand for a number

    def hold(self, value: Any) -> bool:
        """Whether a value of the right type is allowed; of a list, whether each of its values is."""
        if isinstance(value, tuple):
            return all(self.hold(each) for each in value)
        if isinstance(value, str) and value in self.also:
            return True
        return (
            (not self.choices or value in self.choices)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def words(self) -> list[str]:
        """The limits on a number, in words."""
        limits = [("at least", self.at_least), ("greater than", self.above), ("at most", self.at_most)]
        return [f"{words} {limit:.15g}" for words, limit in limits if limit is not None]


def _setting(
    default: T,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    also: tuple[str, ...] = (),
) -> T:
    """A field with its meaning in one line and its limits; its type is the type of the default, or one of `also`."""
    return field(default=default, metadata={"doc": doc, "limits": _Limits(choices, at_least, above, at_most, also)})


@dataclass(frozen=True)
class WirelessConfig:
    """The cell: where the devices are, what the radio and their processors do. The defaults are the paper's cell."""

    num_devices: int = _setting(40, "devices in the cell, K", at_least=1, at_most=10_000_000)
    min_distance_m: float = _setting(100.0, "least distance to the base station, metre", at_least=1.0)
    max_distance_m: float = _setting(500.0, "greatest distance to the base station, metre", at_most=1e7)
    path_loss: str = _setting(
        "exponent",
        "path loss: power gain d^-path_loss_exponent, or 3GPP urban macro, 128.1 + 37.6 log10(d in km) dB",
        choices=("exponent", "3gpp-uma"),
    )
    path_loss_exponent: float = _setting(3.76, "path-loss exponent", above=0.0, at_most=20.0)
    shadowing_db: float = _setting(
        0.0, "log-normal shadowing, drawn once for each device: standard deviation in dB", at_least=0.0, at_most=100.0
    )
    fading: str = _setting(
        "none", "block fading, drawn for each device and round", choices=("none", "rician", "rayleigh")
    )
    rician_k_db: float = _setting(
        6.0, "Rician fading: power of the direct path over the scattered, dB", at_least=-100.0, at_most=100.0
    )
    power_dbm: float = _setting(20.0, "transmit power of a device, dBm", at_least=-200.0, at_most=200.0)
    noise_dbm_per_mhz: float = _setting(-114.0, "noise power density, dBm/MHz", at_least=-300.0, at_most=200.0)
    total_bandwidth_hz: float = _setting(10e6, "the band to divide among the devices, Hz", above=0.0)
    deadline_s: float = _setting(0.4, "when a round must be over, s", above=0.0)
    payload_bits: float = _setting(1e7, "size of a model update, bit", above=0.0)
    cycles_per_sample: float = _setting(
        110.0 * 6272.0, "processor cycles for one training sample", above=0.0, at_most=1e18
    )
    batch_size: int = _setting(40, "training samples in one local step", at_least=1, at_most=1_000_000_000)
    cpu_min_hz: float = _setting(2e9, "slowest processor, Hz", at_least=1.0, at_most=1e15)
    cpu_max_hz: float = _setting(4e9, "fastest processor, Hz", at_least=1.0, at_most=1e15)
    cpu_every_round: bool = _setting(True, "draw the processor speeds anew every round, or once")
    tau_law: str = _setting(
        "exponential",
        "local steps: max(1, round(Exp(tau_mean))) for each device and round, or tau_values for each device or group",
        choices=("exponential", "list", "groups"),
    )
    tau_mean: float = _setting(3.0, "mean of the exponential law of the local steps", above=0.0, at_most=1e9)
    tau_values: tuple[int, ...] = _setting(
        (),
        "local steps of each device (list), or of each of as many equal groups of devices (groups)",
        at_least=1,
        at_most=1_000_000_000,
    )
    trace: str = _setting(
        "", "CSV or NPZ file of gain_db, cpu_hz, tau for each round and device; relative to this file; empty: none"
    )
    trace_repeat: bool = _setting(False, "start the trace again where it ends; otherwise that is an error")
    capacitance: float = _setting(
        1e-28, "effective capacitance: a cycle takes this x (CPU speed)^2 joule", at_least=0.0, at_most=1.0
    )

    def __post_init__(self) -> None:
        _check(self, "wireless")
        if self.trace:
            object.__setattr__(self, "trace", os.path.abspath(self.trace))
        for least, greatest in (("min_distance_m", "max_distance_m"), ("cpu_min_hz", "cpu_max_hz")):
            low, high = getattr(self, least), getattr(self, greatest)
            if low > high:
                raise ValueError(
                    f"wireless.{least} is {low:g}, more than wireless.{greatest}, {high:g}; it must be at most that"
                )
        self._check_tau_values()

    def _check_tau_values(self) -> None:
        given = f"wireless.tau_values has {len(self.tau_values)} values"
        if self.tau_law == "exponential" and self.tau_values:
            raise ValueError(
                f'{given}, but wireless.tau_law is "exponential", which takes none; '
                'it must be empty, or wireless.tau_law one of "list", "groups"'
            )
        if self.tau_law == "list" and len(self.tau_values) != self.num_devices:
            raise ValueError(
                f'{given}, but wireless.num_devices is {self.num_devices}; with tau_law "list" it must have one for '
                "each device"
            )
        if self.tau_law == "groups" and (not self.tau_values or self.num_devices % len(self.tau_values) != 0):
            raise ValueError(
                f'{given}, but wireless.num_devices is {self.num_devices}; with tau_law "groups" it must have one for '
                "each group of equally many devices, so that their number divides num_devices"
            )


@dataclass(frozen=True)
class SchedulingConfig:
    """Who sends, and how participation is weighed against local steps."""

    policy: str = _setting("exact", "name of the policy that selects the devices")
    gamma: float | str = _setting(
        10.0,
        'weight of participation in problem P2; "auto": global_lr / L with the smoothness L of the loss, estimated at '
        'the start; "auto-lr": global_lr / (L local_lr tau_bar), what Lemma 1 asks for',
        at_least=0.0,
        also=("auto", "auto-lr"),
    )
    num_selected: int = _setting(
        0, "devices a round for policies that take a number; 0: the policy's own (ps: tuned on the cell)", at_least=0
    )
    bound: bool = _setting(True, "also prove, every round, the bound that a policy without proof is measured against")

    def __post_init__(self) -> None:
        _check(self, "scheduling")
        if not self.policy.strip():
            raise ValueError(f'scheduling.policy is "{self.policy}"; it must be the name of a policy, such as "exact"')


@dataclass(frozen=True)
class DataConfig:
    """What the devices learn from, and who holds what."""

    name: str = _setting("digits", "data set: digits, synthetic, mnist, fashion-mnist, cifar10")
    folder: str = _setting("", "folder with the files of a data set, looked into first; empty: none")
    partition: str = _setting(
        "iid",
        "who holds which samples: at random, by label shards (the paper's non-i.i.d.), by Dirichlet-distributed "
        "labels, by quantity, or as the data come divided",
        choices=("iid", "shards", "dirichlet", "quantity", "natural"),
    )
    shards_per_device: int = _setting(2, "label shards: how many a device holds", at_least=1)
    dirichlet_alpha: float = _setting(0.5, "Dirichlet partition: small is uneven, large is even", above=0.0)
    quantity_skew: float = _setting(1.0, "quantity partition: sizes follow a power law of this exponent", at_least=0.0)
    share_labels: bool = _setting(
        False, "devices tell the base station how many samples of each label they hold, for policies that ask for it"
    )
    synthetic_alpha: float = _setting(1.0, "synthetic data: how much the devices' models differ", at_least=0.0)
    synthetic_beta: float = _setting(1.0, "synthetic data: how much the devices' samples differ", at_least=0.0)

    def __post_init__(self) -> None:
        _check(self, "data")
        if self.folder:
            object.__setattr__(self, "folder", os.path.abspath(self.folder))


@dataclass(frozen=True)
class LearningConfig:
    """How the devices learn and how the base station averages."""

    model: str = _setting("mlp", "model: logistic, mlp, mnist-cnn, cifar-cnn")
    method: str = _setting("flare", "method: flare, fedavg, fedavg-fixed, fedprox, fednova, scaffold, fedlin")
    local_lr: float = _setting(0.05, "local learning rate", above=0.0)
    global_lr: float = _setting(1.0, "global learning rate", above=0.0)
    tau_bar: str = _setting(
        "mas",
        "FLARE's reference number of steps: the most or the mean over the selected, of this or of the first round; "
        "safe: the most, up to 0.58 / (L local_lr), L estimated at the start",
        choices=("mas", "mes", "fmas", "fmes", "safe"),
    )
    fixed_steps: int = _setting(3, "steps of every device under fedavg-fixed", at_least=1)
    tau_eff: str = _setting(
        "mes", "FedNova's effective number of steps: the mean or the most over the selected", choices=("mes", "mas")
    )
    prox_mu: float = _setting(0.1, "FedProx: weight of the proximal term", at_least=0.0)
    engine: str = _setting(
        "auto", "what computes: auto takes batched on a GPU", choices=("auto", "reference", "sequential", "batched")
    )
    device: str = _setting(
        "auto", "where it computes: auto takes a GPU if there is one", choices=("auto", "cpu", "cuda")
    )
    precision: str = _setting(
        "float32",
        "matrix products on a GPU: as accurate as float32, or faster with factors of 10 bits, as PyTorch convolves",
        choices=("float32", "tf32"),
    )

    def __post_init__(self) -> None:
        _check(self, "learning")


@dataclass(frozen=True)
class RunConfig:
    """When a run ends, and what it writes down."""

    rounds: int = _setting(100, "end after this many rounds", at_least=1)
    seconds: float = _setting(0.0, "end when the simulated clock has passed this; 0: never", at_least=0.0)
    target_accuracy: float = _setting(
        0.0, "end when the test accuracy reaches this; 0: never", at_least=0.0, at_most=1.0
    )
    evaluate_every: int = _setting(5, "test the global model every so many rounds (and at the last)", at_least=1)
    checkpoint_every: int = _setting(20, "write a checkpoint every so many rounds (and at the last)", at_least=1)
    payload: str = _setting(
        "model", "size of an update: the model's true size, or wireless.payload_bits", choices=("model", "wireless")
    )

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True)
class Config:
    """All settings of a run; a field that is itself a dataclass is a section of the file."""

    seed: int = _setting(0, "seed of every random draw; the same seed gives the same run", at_least=0)
    wireless: WirelessConfig = field(default_factory=WirelessConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check(self, "")


def load(path: str | Path) -> Config:
    """Read a TOML file; what it leaves out keeps its default.

    Raises ValueError that names the file, the key and what would be right.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); give the path of a TOML file") from None
    except ValueError as error:
        raise ValueError(f"{path}: is not valid TOML: {error}") from None
    try:
        return _from_table(table, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def override(config: Config, settings: Iterable[str]) -> Config:
    """The configuration with single settings changed, each written as `section.key=value` (or `seed=3`).

    A value is read as TOML; what is not TOML is text: `learning.method=fedavg`. Raises ValueError that names the key.
    """
    tables: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"'{setting}' is not a setting; write section.key=value, such as wireless.deadline_s=0.4")
        section, _, key = name.strip().rpartition(".")
        if section and section not in _SECTIONS:
            raise ValueError(f"unknown section {section}; the sections are {', '.join(_SECTIONS)}")
        _refuse_unknown([key], section, _SECTIONS.get(section, Config))
        tables.setdefault(section, {})[key] = _value(text.strip())
    changed = {name: replace(getattr(config, name), **table) for name, table in tables.items() if name}
    return replace(config, **changed, **tables.get("", {}))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: Config) -> str:
    """The complete file of a configuration, with a comment for each key; `load` reads the same configuration back."""
    blocks = [_keys_to_toml(config)]
    blocks += [f"[{name}]\n" + _keys_to_toml(getattr(config, name)) for name in _SECTIONS]
    return "\n".join(blocks)


_SECTIONS: dict[str, Any] = {
    each.name: each.default_factory for each in fields(Config) if is_dataclass(each.default_factory)
}


def _from_table(table: dict[str, Any], folder: Path) -> Config:
    _refuse_unknown(table, "", Config)
    values = dict(table)
    for name, section in _SECTIONS.items():
        if name not in table:
            continue
        if not isinstance(table[name], dict):
            raise ValueError(f"{name} is {_shown(table[name])}; it must be a section: write [{name}], its keys below")
        _refuse_unknown(table[name], name, section)
        values[name] = section(**_resolved(table[name], folder))
    return Config(**values)


def _resolved(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section with its paths as seen from the folder of the file."""
    paths = {key: section[key] for key in ("trace", "folder") if section.get(key) and isinstance(section[key], str)}
    return section | {key: str(folder / path) for key, path in paths.items()}


def _refuse_unknown(keys: Iterable[str], section: str, config: type[Any]) -> None:
    own = {each.name: _dotted(section, each.name) for each in fields(config)}
    unknown = next((key for key in keys if key not in own), None)
    if unknown is not None:
        known = {each.name: f"{name}.{each.name}" for name, kind in _SECTIONS.items() for each in fields(kind)} | own
        nearest = known[difflib.get_close_matches(unknown, known, n=1, cutoff=0.0)[0]]
        raise ValueError(f"unknown key {_dotted(section, unknown)}; the nearest known key is {nearest}")


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _check(config: Any, section: str) -> None:
    """Bring every setting to the type of its default (a whole number may stand for a number, a list for a tuple)."""
    for each in fields(config):
        if "limits" not in each.metadata:
            continue
        given = getattr(config, each.name)
        limits: _Limits = each.metadata["limits"]
        value = given if isinstance(given, str) and given in limits.also else _converted(given, each.default)
        if value is None or not limits.hold(value):
            allowed = _allowed(each.default, limits)
            raise ValueError(f"{_dotted(section, each.name)} is {_shown(given)}; it must be {allowed}")
        object.__setattr__(config, each.name, value)


def _converted(value: Any, default: Any) -> Any:
    """The value in the type of the default, or None where it is of another type."""
    if isinstance(default, tuple):
        numbers = [_converted(each, 0) for each in value] if isinstance(value, list | tuple) else [None]
        return None if None in numbers else tuple(numbers)
    if isinstance(default, bool | str):
        return value if isinstance(value, type(default)) else None
    if isinstance(value, bool) or not isinstance(value, Integral if isinstance(default, int) else Real):
        return None
    try:
        number = type(default)(value)
    except OverflowError:  # a whole number beyond any float
        return None
    return number if isinstance(number, int) or math.isfinite(number) else None


def _allowed(default: Any, limits: _Limits) -> str:
    if limits.choices:
        return "one of " + _quoted(limits.choices)
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, str):
        return "text in quotes"
    if isinstance(default, tuple):
        return "a list of whole numbers, each " + " and ".join(limits.words())
    allowed = ", ".join(["a whole number" if isinstance(default, int) else "a finite number", *limits.words()])
    return allowed + (f", or one of {_quoted(limits.also)}" if limits.also else "")


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'the text "{value}"'
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _keys_to_toml(config: Any) -> str:
    lines = []
    for each in fields(config):
        if "doc" in each.metadata:
            choices = each.metadata["limits"].choices
            lines.append(f"# {each.metadata['doc']}" + (f" ({_quoted(choices)})" if choices else ""))
            lines.append(f"{each.name} = {_literal(getattr(config, each.name))}")
    return "\n".join(lines) + "\n"


def _literal(value: bool | int | float | str | tuple[int, ...]) -> str:
    """A value as TOML writes it: JSON's way, save that TOML wants DEL escaped and people want round numbers short."""
    if isinstance(value, float) and value >= 1e6 and float(f"{value:g}") == value:
        return f"{value:g}".replace("e+0", "e").replace("e+", "e")
    written = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return written.replace("\x7f", "\\u007f")
