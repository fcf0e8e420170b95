"""What `flare.simulate` and `flare.compare` are given, brought to settings, to data and to models."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from numpy.typing import ArrayLike
from torch import nn

from flare.config import MAX_SEEDS, Config, load, override, with_settings
from flare.data import Dataset, from_arrays
from flare.learning.methods import METHODS
from flare.learning.models import ModelBuilder
from flare.plugins import load_plugins
from flare.scheduling import POLICIES
from flare.sweeps import Own
from flare.sweeps.entries import TextEntry, of_pairs, refuse_twins, run_name, with_pair
from flare.sweeps.grid import setting_in
from flare.sweeps.parts import PARTS

ConfigLike = Config | Mapping[str, Any] | str | os.PathLike[str] | None
DataLike = Dataset | Sequence[ArrayLike] | str | None
ModuleLike = nn.Module | Callable[..., nn.Module] | str | None
EntryLike = str | Sequence[Any] | Mapping[str, Any]

_MAX_NAME = 60  # characters of a label in the name of a folder


def config_of(given: ConfigLike) -> Config:
    """Settings as they are, from a dict (sections, or dotted names), from a TOML file; None: the defaults. The plugins
    that they name are executed, so that names of theirs are known."""
    config = _config_of(given)
    load_plugins(config.plugins)
    return config


def _config_of(given: ConfigLike) -> Config:
    match given:
        case None:
            return Config()
        case Config():
            return given
        case Mapping():
            return with_settings(Config(), given)
        case str() | os.PathLike():
            return load(Path(given))
    raise ValueError(
        f"config is a {type(given).__name__}; give a Config, a dict of settings or the path of a TOML file"
    )


def with_names(config: Config, *, policy: Any, method: Any, dataset: DataLike, module: ModuleLike) -> Config:
    """The settings with what was given by name, or is registered by one; None: as the settings say."""
    changes: dict[str, Any] = {}
    if policy is not None:
        changes["scheduling.policy"] = policy_name(policy)
    if method is not None:
        changes["learning.method"] = method_name(method)
    if isinstance(dataset, str):
        changes["data.name"] = dataset
    if isinstance(module, str):
        changes["learning.model"] = module
    return with_settings(config, changes)


def policy_name(given: Any) -> str:
    """The name of a policy: a name, or the function that was registered."""
    return _name(given, POLICIES, "policy", lambda known: known.function)


def method_name(given: Any) -> str:
    """The name of a method: a name, or the function or class that was registered."""
    return _name(given, METHODS, "method", lambda known: known.make)


def _name(given: Any, known: Mapping[str, Any], kind: str, code: Callable[[Any], Any]) -> str:
    if isinstance(given, str):
        return given  # whether there is one, who looks it up says
    for name, each in known.items():
        if given is each or given is code(each):
            return name
    called = getattr(given, "__name__", type(given).__name__)
    raise ValueError(
        f'{kind} is {called}, which is not registered; give the name of a {kind}, or write @flare.{kind}("name") '
        f"above {called}"
    )


def own_of(dataset: DataLike, held: Sequence[ArrayLike] | None, module: ModuleLike) -> Own:
    """The data and the model that are the user's own."""
    return Own(_dataset(dataset), held, _module(module))


def _dataset(given: DataLike) -> Dataset | None:
    if given is None or isinstance(given, str):
        return None
    if isinstance(given, Dataset):
        return given
    if isinstance(given, tuple | list) and len(given) == 4:
        return from_arrays(*given)
    raise ValueError(
        f"dataset is a {type(given).__name__}; give the name of one, four arrays (train_x, train_y, test_x, test_y) or "
        "what flare.data.from_arrays or flare.data.from_torch makes"
    )


def _module(given: ModuleLike) -> nn.Module | ModelBuilder | None:
    if given is None or isinstance(given, str):
        return None
    if isinstance(given, nn.Module):
        return given
    if not callable(given):
        raise ValueError(
            f"module is a {type(given).__name__}; give the name of a model, a module or a function that builds one"
        )
    return given if _takes(given, 2) or not _takes(given, 0) else lambda sample_shape, num_classes: given()


def _takes(function: Callable[..., Any], number: int) -> bool:
    """Whether a function can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # it does not tell
        return number == 2
    return True


# --- entries of a comparison ------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Entry:
    """What is compared with other entries: a method with a policy, and settings of its own; `label` names it."""

    method: str
    policy: str
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def name(self, seed: int) -> str:
        """What its run with a seed is called, and its folder."""
        if not self.label:
            return run_name(self.method, self.policy, seed)
        plain = re.sub(r"[^\w.-]+", "-", self.label).strip("-.") or "entry"
        return f"{plain[:_MAX_NAME]}-seed{seed}"


def entries_of(given: Sequence[EntryLike], whole: Config) -> list[Entry]:
    """The entries of a comparison; ValueError for what is none, and where two cannot be told apart."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ValueError('entries is no list; give a list such as ["flare:greedy", "fedavg:greedy"]')
    entries = [_entry(each, whole) for each in given]
    if not entries:
        raise ValueError('there is nothing to compare; give entries such as ["flare:greedy", "fedavg:greedy"]')
    named = [(entry.name(0), entry.label or f"{entry.method}:{entry.policy}") for entry in entries]
    refuse_twins(named, "give one of them another label")
    return entries


def _entry(given: EntryLike, whole: Config) -> Entry:
    if isinstance(given, str):
        return _typed(TextEntry.read(given, "entries: "), whole)
    if isinstance(given, Mapping):
        return _labelled(given, whole)
    if isinstance(given, Sequence) and len(given) == 2:
        return Entry(method_name(given[0]), policy_name(given[1]))
    raise ValueError(
        f'{given!r:.80} is no entry; give "method:policy", a pair (method, policy) or a dict of settings with a label'
    )


def _typed(entry: TextEntry, whole: Config) -> Entry:
    """An entry as the command line takes it, with its text for a label where it has settings of its own."""
    if not entry.settings:
        return Entry(entry.method, entry.policy, entry.label)
    own = override(with_pair(whole, entry.method, entry.policy), entry.settings)
    names = [each.partition("=")[0].strip() for each in entry.settings]
    return Entry(entry.method, entry.policy, entry.label or str(entry), {name: setting_in(own, name) for name in names})


def _labelled(given: Mapping[str, Any], whole: Config) -> Entry:
    settings = dict(given)
    label = settings.pop("label", "")
    method = method_name(settings.pop("method", whole.learning.method))
    policy = policy_name(settings.pop("policy", whole.scheduling.policy))
    if not isinstance(label, str) or (settings and not label.strip()):
        raise ValueError(
            'an entry that changes settings needs a label: {"label": "small steps", "learning.local_lr": 0.01}'
        )
    if "seed" in settings:
        raise ValueError("an entry has a seed of its own; all entries are run with the same: give seeds=")
    own = with_settings(with_pair(whole, method, policy), settings)
    return Entry(own.learning.method, own.scheduling.policy, label.strip(), settings)


def configs_of(whole: Config, entries: Sequence[Entry], seeds: Sequence[int]) -> list[list[Config]]:
    """The settings of each entry with each seed. A method or policy gets those of the shared options that it has."""
    shared = of_pairs(whole, [(entry.method, entry.policy) for entry in entries])
    made = []
    for one, entry in zip(shared, entries, strict=True):
        own = with_settings(one, entry.settings)
        for part in PARTS:
            part.check(own)
        made.append([replace(own, seed=seed) for seed in seeds])
    return made


def seeds_of(given: int | Sequence[int], first: int) -> list[int]:
    """The seeds of a comparison: so many, from the configuration's on, or these."""
    if isinstance(given, int) and not isinstance(given, bool):
        seeds = list(range(first, first + min(given, MAX_SEEDS + 1)))
    elif isinstance(given, str) or not hasattr(given, "__iter__"):
        seeds = []
    else:
        seeds = list(given)
    whole = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in seeds)
    if not whole or not 1 <= len(seeds) <= MAX_SEEDS or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"seeds is {given!r:.80}; give how many, or a list of different seeds, whole numbers from 0 "
            f"(at most {MAX_SEEDS} of them)"
        )
    return seeds
