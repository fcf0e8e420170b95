"""What a folder of many runs says of itself, so that the next call knows whether it continues the same work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flare.atomic import write_whole
from flare.config import Config, Options, settings_of
from flare.plugins import plugin_text
from flare.reading import read_small
from flare.simulation.identity import trace_identity
from flare.sweeps.task import anywhere
from flare.text import cut
from flare.wireless.trace import read_trace

_MAX_BYTES = 1 << 28
_COMMANDS = {"sweep": "sweep", "tuning": "tune"}  # that write it
_OF_RUNS = ("runs", "judged")  # folders beside a description

Description = Mapping[str, Any]
"""Plain values by name; "format" says of what it is."""


def changed_settings(config: Config) -> dict[str, Any]:
    """The settings that are not the default, seed and place aside, as JSON gives them back."""
    usual = settings_of(Config())
    return {
        key: plain(value)
        for key, value in settings_of(anywhere(config)).items()
        if value != usual[key] and key != "seed"
    }


def described_files(configs: Iterable[Config]) -> dict[str, Any]:
    """What the plugins and traces of runs hold, by their paths, as a part of a description; without what there is not,
    as of folders that were begun before these were looked at."""
    configs = list(configs)
    plugins = sorted({path for config in configs for path in config.plugins})
    traces = sorted({config.wireless.trace for config in configs} - {""})
    found = {
        "plugins": {path: plugin_text(path)[1] for path in plugins},
        "traces": {path: trace_identity(read_trace(path))["trace"] for path in traces},
    }
    return {key: files for key, files in found.items() if files}


def differing_files(there: Description, here: Description) -> str:
    """Words where what the plugins or the traces of two descriptions hold is not the same."""
    for key in ("plugins", "traces"):
        before, now = there.get(key) or {}, here.get(key, {})
        changed = next((path for path in before if path in now and before[path] != now[path]), None)
        if changed is not None:
            return f"its {key.removesuffix('s')} {changed} was changed since"
        if before != now:
            return f"its {key} are others"
    return ""


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value, default=_as_table))


def _as_table(value: Any) -> dict[str, Any]:
    """What JSON does not know: options."""
    if isinstance(value, Options):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no setting")


def begin_described(
    file: Path, described: Description, what: str, *, check: Callable[[], None], differing: Callable[[Description], str]
) -> bool:
    """Write a description into a folder, or find that it is there already; whether it was.

    `what` the folder holds is a word such as "sweep". `check` is called before anything is written. ValueError where
    the folder holds another one, with what `differing` says of the one that is there, or something else; nothing is
    touched then.
    """
    out = file.parent
    linked = next((out / name for name in _OF_RUNS if (out / name).is_symlink()), None)
    if linked is not None:
        raise ValueError(f"{linked} is a link, through which nothing is written; remove it, or give another --out")
    if not file.exists():
        if out.exists() and (not out.is_dir() or any(not each.name.startswith(".") for each in out.iterdir())):
            raise ValueError(
                f"{out} is not empty and holds no {what}, so that nothing is written there; give another --out"
            )
        check()
        out.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(described, indent=1) + "\n").encode())
        return False
    before = read_description(file, str(described["format"]), what)
    if before != described:
        raise ValueError(
            f"{out} holds another {what} ({differing(before)}); give another --out, or the very {what} that was begun "
            "there"
        )
    return True


def read_description(file: Path, format_: str, what: str) -> dict[str, Any]:
    """A description that was written; ValueError where it is none of this format."""
    try:
        found = json.loads(read_small(file, _MAX_BYTES))
        if not isinstance(found, dict) or found.get("format") != format_:
            raise ValueError(f"it does not say that it is of a {what}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not what flare {_COMMANDS[what]} writes ({error}); give another --out") from None
    return found


def differing_settings(there: Description, here: Description) -> str:
    """The first of the settings in which two descriptions differ."""
    before, now = there.get("settings"), here["settings"]
    if isinstance(before, dict):
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                told = (cut(str(each.get(key, "the default")), 60) for each in (before, now))
                return "its {} is {}, here {}".format(key, *told)
    return "its settings are others"


def differing_value(there: Description, here: Description, key: str) -> str:
    """How two descriptions differ in one of their values; empty where they do not."""
    if there.get(key) == here[key]:
        return ""
    return f"its {key} are {cut(str(there.get(key)), 60)}, here {cut(str(here[key]), 60)}"
