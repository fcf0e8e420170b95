"""The form of a new run, made from the configuration: every setting with its comment, its default and what it may be.

What somebody types into a field is what would stand behind the = of `flare run --set name=...`, and is read so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flare.config import MAX_SEEDS, SECTIONS, Config, Options, settings_of, with_settings
from flare.config.option import Option
from flare.config.setting import declared, quantity
from flare.config.toml import literal, load_text, refuse_name, shown_default, split_settings
from flare.report.group_labels import ONLY_WITH
from flare.studio.run_folders import below
from flare.sweeps.parts import PARTS, Part
from flare.text import one_line
from flare.units import example_of

COMMON = (
    "seed", "wireless.num_devices", "wireless.total_bandwidth_hz", "wireless.deadline_s", "wireless.fading",
    "wireless.tau_mean", "scheduling.policy", "scheduling.gamma", "uplink.codec", "data.name", "data.partition",
    "data.dirichlet_alpha", "data.shards_per_device", "learning.model", "learning.method", "learning.local_lr",
    "learning.global_lr", "run.rounds", "run.seconds", "run.target_accuracy", "run.evaluate_every",
)  # fmt: skip
"""Settings that most runs change: those that the form shows first."""
PATHS = ("wireless.trace", "data.folder", "plugins")
"""Settings that name files; here they have to lie in the studio's folder."""
MAX_SETTINGS = 500
_TITLES = {
    "": "Runs",
    "wireless": "Cell",
    "scheduling": "Scheduling",
    "uplink": "Uplink",
    "data": "Data",
    "learning": "Learning",
    "run": "End and records",
}
_KINDS = {bool: "switch", int: "whole", float: "number", str: "text", tuple: "list"}


def form() -> dict[str, Any]:
    """The whole form: sections with their settings, and the options of everything that can be chosen by name."""
    return {
        "sections": [_section(name) for name in ("", *SECTIONS)],
        "parts": [_part(part) for part in PARTS],
        "max_seeds": MAX_SEEDS,
    }


def _section(name: str) -> dict[str, Any]:
    kind = SECTIONS[name] if name else Config
    doc = "Seed and files of your own." if not name else one_line(kind.__doc__ or "")
    settings = [
        _setting(f"{name}.{each.name}" if name else each.name, each)
        for each in fields(kind)
        if "doc" in each.metadata and not isinstance(each.default, Options)
    ]
    return {"name": name, "title": _TITLES.get(name, name), "doc": doc, "settings": settings}


def _setting(name: str, each: Any) -> dict[str, Any]:
    measured = quantity(each)
    only_with = ONLY_WITH.get(name)
    return {
        "name": name,
        "common": name in COMMON,
        "example": None if measured is None else example_of(measured),
        "only_with": None if only_with is None else {"name": only_with[0], "value": only_with[1]},
        **_field(declared(each)),
    }


def _field(option: Option) -> dict[str, Any]:
    limits = option.limits
    kind = "choice" if limits.choices else _KINDS.get(option.kinds[0] if option.kinds else object, "any")
    return {
        "key": option.name,
        "doc": option.doc,
        "kind": kind,
        "default": _default(option),
        "choices": list(limits.choices),
        "also": list(limits.also),
        "at_least": limits.at_least,
        "above": limits.above,
        "at_most": limits.at_most,
        "must_be": option.in_words(),
    }


def _default(option: Option) -> str:
    """The default as it would be typed."""
    return "none" if option.default is None else typed(option.default) if option.kinds else shown_default(option)


def _part(part: Part) -> dict[str, Any]:
    """What can be chosen for a setting that is a name, each with its options."""
    things = [
        {"name": name, "summary": thing.summary, "options": [_field(one) for one in thing.options.values()]}
        for name, thing in part.registry.items()
    ]
    return {"setting": f"{part.section}.{part.key}", "table": f"{part.section}.{part.table}", "things": things}


def typed(value: Any) -> str:
    """A value as somebody would type it into the form: words without quotes where they are read as the same."""
    if isinstance(value, str) and value.strip() == value and split_settings([f"x={value}"]) == {"x": value}:
        return value
    return literal(value)


def changed_settings(config: Config) -> dict[str, str]:
    """The settings in which a configuration differs from the default, as they would be typed; options one by one."""
    usual = settings_of(Config())
    changed: dict[str, str] = {}
    for name, value in settings_of(config).items():
        if isinstance(value, Options):
            changed |= {f"{name}.{option}": typed(each) for option, each in value.items()}
        elif value != usual[name]:
            changed[name] = typed(value)
    return changed


def file_config(text: str, name: str, root: Path) -> Config:
    """The configuration in the text of a file, as if it lay in the folder `root`: its paths are seen from there. They
    are not read, and may lead out of it. ValueError, which names the file, where it is none."""
    top = root.resolve()
    try:
        return load_text(text, top / Path(name).name)
    except ValueError as error:
        raise ValueError(str(error).replace(f"{top}/", "")) from None


@dataclass(frozen=True)
class Checked:
    """What was typed: the configuration that it makes, or what is wrong, by the name of the field ("": as a whole)."""

    config: Config | None
    errors: Mapping[str, str]


def checked(settings: Mapping[str, str], root: Path) -> Checked:
    """Read and check what was typed into the form; files are looked for from the folder `root` on, and below it only.

    All that is wrong is told at once: a field with an error is left out, and the rest is looked at again.
    """
    errors: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, text in settings.items():
        try:
            values[name] = _read(name, text, root)
        except ValueError as error:
            errors[name] = one_line(str(error))
    while True:
        try:
            config = with_settings(Config(), values)
            break
        except ValueError as error:
            named = _named(str(error), values)
            if len(named) < 2 or not errors:  # otherwise it may be the other one that was left out
                errors[named[0] if named else ""] = one_line(str(error))
            if not named or values.pop(named[0], None) is None:
                return Checked(None, errors)
    errors |= outside(config, root)
    if not errors and not config.plugins:  # what plugins register, only the run itself knows
        errors = _errors_of_parts(config)
    return Checked(None if errors else config, errors)


def _named(message: str, values: Mapping[str, Any]) -> list[str]:
    """The settings that a message names, in its order; of those that were typed, only those where there are any."""
    words = re.findall(r"[A-Za-z_][\w.-]*\w", message)
    typed_names = [word for word in words if word in values]
    return list(dict.fromkeys(typed_names or [word for word in words if word in settings_of(Config())]))


def refuse_paths_outside(settings: Sequence[str], root: Path) -> None:
    """ValueError where one of the texts `name=value` is no setting, or names a file outside of the folder `root`."""
    for text in settings:
        name, _, value = text.partition("=")
        _read(name.strip(), value.strip(), root)


def _read(name: str, text: str, root: Path) -> Any:
    """The value that was typed; a path as a whole one. ValueError where there is no such setting, or where a path leads
    out of the folder."""
    refuse_name(name)
    if "\0" in text or "\n" in text:
        raise ValueError(f"{name} must be one line of text")
    value = split_settings([f"{name}={text}"])[name]
    if name == "plugins" and value == "":
        raise ValueError('plugins is empty; name a file, such as "mine.py", or leave it out')
    if name not in PATHS:
        return value
    paths = value if isinstance(value, list) else [value] if value else []
    if not all(isinstance(path, str) for path in paths):
        raise ValueError(f"{name} is {text:.80}; it must be the path of a file in the studio's folder")
    found = _whole_paths(name, paths, root)
    return found if name == "plugins" else (found or [""])[0]


def outside(config: Config, root: Path) -> dict[str, str]:
    """What is wrong with the files that a configuration names, by setting: they have to lie in the folder `root`."""
    named = {"wireless.trace": [config.wireless.trace], "data.folder": [config.data.folder], "plugins": config.plugins}
    found: dict[str, str] = {}
    for name, paths in named.items():
        try:
            _whole_paths(name, list(filter(None, paths)), root)
        except ValueError as error:
            found[name] = one_line(str(error))
    return found


def _whole_paths(name: str, paths: Sequence[str], root: Path) -> list[str]:
    """The paths, each as a whole one; ValueError where one leads out of the folder."""
    try:
        return [str(below(root, path)) for path in paths]
    except ValueError as error:
        raise ValueError(f"{name}: {error}; put the file itself there, or use flare run") from None


def _errors_of_parts(config: Config) -> dict[str, str]:
    """What is wrong with names that are chosen and with their options, by field."""
    errors: dict[str, str] = {}
    for part in PARTS:
        try:
            thing = part.registry.find(part.name(config))
        except ValueError as error:
            errors[f"{part.section}.{part.key}"] = one_line(str(error))
            continue
        for name, value in part.options(config).items():
            try:
                thing.check_options({name: value})
            except ValueError as error:
                errors[f"{part.section}.{part.table}.{name}"] = one_line(str(error))
        if not errors:
            try:
                thing.check_options(part.options(config))
            except ValueError as error:
                errors[f"{part.section}.{part.key}"] = one_line(str(error))
    return errors


def arguments(settings: Mapping[str, str], entries: Sequence[str], seeds: int, out: str) -> list[str]:
    """What follows `flare` on the command line that does the same: `run`, or `compare` for several runs."""
    several = bool(entries) or seeds > 1
    words = ["compare" if several else "run"]
    for entry in entries:
        words += ["--entry", entry]
    words += ["--seeds", str(seeds)] if several else []
    plugins = split_settings([f"plugins={settings['plugins']}"])["plugins"] if settings.get("plugins") else []
    for path in plugins if isinstance(plugins, list) else [plugins]:
        words += ["--plugin", str(path)]
    for name, text in settings.items():
        if name != "plugins":
            words += ["--set", f"{name}={text}"]
    return [*words, "--out", out]
