"""Settings from a TOML file or from single `section.key=value` texts, and the complete file of a configuration."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

from flare.config.names import MOVED, Moved, meant_by, refuse_unknown
from flare.config.option import Option, quoted
from flare.config.options import Options, Value
from flare.config.sections import SECTIONS, Config
from flare.config.setting import quantity, shown
from flare.reading import read_small
from flare.units import example_of

MAX_FILE_BYTES = 16 << 20
"""A larger file is no configuration; a list of ten million devices' steps still is."""
_PATHS = ("trace", "folder")  # settings that name a file, as seen from the folder of the configuration
_EXAMPLE = "wireless.deadline_s=0.4"
Notes = Mapping[str, Iterable[str]]


def load(path: str | Path, *, of_run: bool = False) -> Config:
    """Read a TOML file; what it leaves out keeps its default. No plugin that it names is executed.

    A key that has moved since earlier versions is read in its old place too: files live long, and the folder of an old
    run holds one; of such a file (`of_run`) what meant nothing for its method or data is left out. Raises ValueError
    that names the file, the key and what would be right.
    """
    path = Path(path)
    return _config_of(path, read_table(path), of_run)


def load_text(text: str, path: str | Path) -> Config:
    """The same of the text of a file, which is named `path` in messages."""
    return _config_of(Path(path), _table_of(Path(path), text))


def _config_of(path: Path, table: dict[str, Any], of_run: bool = False) -> Config:
    try:
        return _from_table(_moved(table, of_run), path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_table(path: Path) -> dict[str, Any]:
    """What a TOML file says, of whatever; ValueError that names the file where it is no such file."""
    try:
        text = read_small(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); give the path of a TOML file") from None
    return _table_of(path, text)


def _table_of(path: Path, text: str) -> dict[str, Any]:
    try:
        return _parsed(text)
    except ValueError as error:
        raise ValueError(f"{path}: is not valid TOML: {error}") from None


def override(config: Config, settings: Iterable[str]) -> Config:
    """The configuration with single settings changed, each written as `section.key=value`, `seed=3` or, for an option
    of a policy, `scheduling.options.num_selected=3`.

    A value is read as TOML; what is not TOML is text: `learning.method=fedavg`, or `wireless.deadline_s=400ms`, which
    is a number with its unit. Raises ValueError that names the key.
    """
    return _with_settings(config, map(_setting, settings))


def split_settings(settings: Iterable[str]) -> dict[str, Any]:
    """The values of texts `name=value` by their names, read as `override` reads them; of one name the last counts."""
    return dict(map(_setting, settings))


def refuse_name(name: str) -> None:
    """ValueError where this is no name of one setting, as `override` takes it: a section as a whole is none."""
    if name != name.strip() or "=" in name:
        raise ValueError(f"{name!r:.80} is no name of a setting; write it without = and spaces")
    _place(name)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with settings changed by a dict: sections as dicts in it, `{"run": {"rounds": 5}}`, or dotted
    names, `{"run.rounds": 5}`; of one that is in it both ways the later counts, so that `{**mine, "run.rounds": 5}` is
    `mine` with five rounds. Raises ValueError that names the key, as for a file."""
    named: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ValueError(f'a setting is named {name!r:.80}; write its name as text, such as "run.rounds"')
        inner = value if name in SECTIONS and isinstance(value, Mapping) else None
        named |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return _with_settings(config, ((name, value) for name, value in named.items()))


def _with_settings(config: Config, settings: Iterable[tuple[str, Any]]) -> Config:
    tables: dict[str, dict[str, Any]] = {}
    for name, given in settings:
        section, key, option = _place(name)
        table, value = tables.setdefault(section, {}), given
        if option:
            before = table.get(key, getattr(getattr(config, section), key))
            value = {**(before if isinstance(before, Mapping) else {}), option: given}
        table[key] = value
    changed = {name: replace(getattr(config, name), **table) for name, table in tables.items() if name}
    return replace(config, **changed, **tables.get("", {}))


def to_toml(config: Config, notes: Notes | None = None) -> str:
    """The complete file of a configuration, with a comment for each key; `load` reads the same configuration back.

    `notes` are lines of comment below a table of options, by its name, such as "scheduling.options".
    """
    blocks = [_keys_to_toml(config)]
    for name in SECTIONS:
        section = getattr(config, name)
        blocks.append(f"[{name}]\n" + _keys_to_toml(section))
        blocks += [
            f"# {each.metadata['doc']}\n[{name}.{each.name}]\n"
            + "".join(f"# {line}\n" for line in (notes or {}).get(f"{name}.{each.name}", ()))
            + "".join(f"{option} = {literal(value)}\n" for option, value in getattr(section, each.name).items())
            for each in fields(section)
            if isinstance(each.default, Options)
        ]
    return "\n".join(blocks)


def _setting(text: str) -> tuple[str, Any]:
    """The name and the value of a text `name=value`."""
    name, equals, written = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"'{text}' is not a setting; write section.key=value, such as {_EXAMPLE}")
    return name.strip(), _value(name.strip(), written.strip())


def _place(name: str) -> tuple[str, str, str]:
    """Section, key and option of the name `section.key` or `section.key.option`; "" for what there is not."""
    section, dot, key = name.partition(".")
    if not section or (dot and not key and section not in SECTIONS):
        raise ValueError(f"{name!r:.80} is no name of a setting; write section.key=value, such as {_EXAMPLE}")
    if not key:
        section, key = "", section
    if section and section not in SECTIONS:
        meant = meant_by(key, "")
        hint = f"did you mean {' or '.join(meant)}? The" if meant else "the"
        raise ValueError(f"unknown section {section}; {hint} sections are {', '.join(SECTIONS)}")
    if not section and key in SECTIONS:
        known = next(iter(fields(SECTIONS[key]))).name
        raise ValueError(f"{key} is a section, not a setting; write {key}.KEY=value, such as {key}.{known}=...")
    table, _, option = key.partition(".")
    if option and table in _tables(section):
        return section, table, option
    refuse_unknown([key], section)
    return section, key, ""


def _tables(section: str) -> list[str]:
    """The settings of a section that are tables of options."""
    return [each.name for each in fields(SECTIONS[section]) if isinstance(each.default, Options)] if section else []


def _value(name: str, text: str) -> Any:
    try:
        table = _parsed(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ValueError(f"{name}: its value cannot be read: {error}") from None
    return table["value"] if len(table) == 1 else text  # a line end in the text would begin another key


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deep to be read") from None


def _from_table(table: dict[str, Any], folder: Path) -> Config:
    refuse_unknown(table, "")
    values = dict(table)
    plugins = table.get("plugins", [])
    if isinstance(plugins, list | str):
        listed = [plugins] if isinstance(plugins, str) else plugins
        values["plugins"] = [str(folder / each) if isinstance(each, str) else each for each in listed]
    for name, section in SECTIONS.items():
        if name not in table:
            continue
        if not isinstance(table[name], dict):
            raise ValueError(f"{name} is {shown(table[name])}; it must be a section: write [{name}], its keys below")
        refuse_unknown(table[name], name)
        values[name] = section(**_resolved(table[name], folder))
    return Config(**values)


def _resolved(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section with its paths as seen from the folder of the file."""
    return {key: seen_from(folder, key, value) for key, value in section.items()}


def seen_from(folder: Path, name: str, value: Any) -> Any:
    """The value of a setting that a file in a folder gives; that of one which names a file as a path from here."""
    section, _, key = name.rpartition(".")
    is_path = key in _PATHS and "." not in section and isinstance(value, str) and value
    return str(folder / value) if is_path else value


def _moved(table: dict[str, Any], of_run: bool) -> dict[str, Any]:
    """The table with former keys in their new places."""
    for moved in MOVED:
        section = table.get(moved.section)
        if not isinstance(section, dict) or moved.key not in section:
            continue
        rest = {key: value for key, value in section.items() if key != moved.key}
        value, options = section[moved.key], rest.get("options", {})
        if value != moved.default and isinstance(options, dict) and not (of_run and _meant_nothing(moved, section)):
            rest["options"] = {moved.option: value, **options}
        table = table | {moved.section: rest}
    return table


def _meant_nothing(moved: Moved, section: dict[str, Any]) -> bool:
    """Whether the part that has the option is another than the file names."""
    key, name = moved.part
    return bool(key) and section.get(key, getattr(SECTIONS[moved.section](), key)) != name


def _keys_to_toml(config: Any) -> str:
    lines = []
    for each in fields(config):
        if "doc" in each.metadata and not isinstance(each.default, Options):
            lines.append(f"# {each.metadata['doc']}{_forms(each)}")
            lines.append(f"{each.name} = {literal(getattr(config, each.name))}")
    return "\n".join(lines) + "\n"


def _forms(each: Field[Any]) -> str:
    """How a value may be written, for the comment of a setting: its choices, or an example with a unit."""
    choices, measured = each.metadata["limits"].choices, quantity(each)
    if choices:
        return f" ({quoted(choices)})"
    return "" if measured is None else f' (or with a unit: "{example_of(measured)}")'


def literal(value: Value) -> str:
    """A value as TOML writes it: JSON's way, save that TOML wants DEL escaped and people want round numbers short."""
    if isinstance(value, float) and value >= 1e6 and float(f"{value:g}") == value:
        return f"{value:g}".replace("e+0", "e").replace("e+", "e")
    written = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return written.replace("\x7f", "\\u007f")


def shown_default(option: Option) -> str:
    """The default as a file would say it; none, which leaves it out."""
    if option.default is None:
        return "none"
    try:
        return literal(option.default)
    except TypeError:  # of a type that no file can say
        return repr(option.default)
