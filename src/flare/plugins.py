"""Plugins: Python files of a user's own policies, methods, models, data sets, codecs and air schemes.

A plugin is one file, executed as a module of its own; what it registers by decorators (`@flare.policy("mine")`, ...)
can then be asked for by name. Loaded again unchanged, nothing happens; changed, it is executed anew, and what it
registers takes the place of what it registered before. Where it fails, nothing of it stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flare.reading import read_small
from flare.registry import REGISTRIES, loading
from flare.text import cut

MAX_BYTES = 4 << 20
"""A larger file is no plugin."""
_MAX_WORDS = 500


@dataclass(frozen=True)
class Plugin:
    """A plugin that was executed: its file, the SHA-256 of it, and the kinds and names of what it registered."""

    path: str
    sha256: str
    registered: tuple[tuple[str, str], ...]

    def is_there(self) -> bool:
        """Whether all that it registered still is."""
        return all(name in REGISTRIES[kind] for kind, name in self.registered)


_loaded: dict[str, Plugin] = {}  # by the real path
_sent: dict[str, bytes] = {}  # by the path, the plugins that another process sent


def plugin_text(path: str | Path) -> tuple[bytes, str]:
    """What a plugin's file holds now, to be sent to other machines, and its SHA-256; ValueError where it cannot be
    read."""
    content = _content(path)
    return content, hashlib.sha256(content).hexdigest()


def take_plugin(path: str, content: bytes, sha256: str) -> None:
    """From now on the plugin of that path is this text, whether or not this machine has such a file."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"plugin {path} was changed on its way here: its SHA-256 is no longer {sha256}; try again")
    _sent[path] = content


def load_plugins(paths: Iterable[str | Path]) -> list[Plugin]:
    """Execute plugins, in their order; those that were executed before and have not changed are left as they are."""
    return [load_plugin(path) for path in paths]


def load_plugin(path: str | Path) -> Plugin:
    """Execute a plugin, unless it was and has not changed.

    Raises ValueError that names the file, the line and what is wrong: a file that cannot be read, an error of its own,
    a name that is taken. What it prints goes to standard error.
    """
    path = os.path.abspath(path)
    real, content = os.path.realpath(path), _content(path)
    sha256 = hashlib.sha256(content).hexdigest()
    known = _loaded.get(real)
    if known is None or known.sha256 != sha256 or not known.is_there():
        with loading(real) as registered:
            _execute(real, path, content)
        known = _loaded[real] = Plugin(path, sha256, tuple(registered))
    return known


def loaded_files() -> list[str]:
    """The plugins that were executed in this process."""
    return [plugin.path for plugin in _loaded.values()]


def loaded_checksum(path: str | Path) -> str | None:
    """The SHA-256 of a plugin as it was executed in this process; None where it was not."""
    known = _loaded.get(os.path.realpath(path))
    return None if known is None else known.sha256


def file_checksum(path: str | Path) -> str:
    """The SHA-256 of a plugin's file as it is now; ValueError where it cannot be read."""
    return hashlib.sha256(_content(path)).hexdigest()


def told_as_plugins(error: BaseException) -> ValueError | None:
    """An error that a plugin's code raised, or raised in what it called, as one ValueError: which file, which line,
    what; None where no plugin was at work, or the error says so already."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _loaded]
    if not frames or _words(error).startswith("plugin "):
        return None
    where = f"plugin {_loaded[frames[-1].filename].path}, line {frames[-1].lineno}"
    if isinstance(error, SystemExit):
        return ValueError(f"{where}: it ended the program (exit code {error.code!r:.40}); raise a ValueError instead")
    return ValueError(f"{where}: {_kind(error)}{_words(error)}")


def _kind(error: BaseException) -> str:
    return "" if type(error) is ValueError else f"{type(error).__name__}: "


def _words(error: BaseException) -> str:
    """What an error says; its own code may fail at saying it."""
    try:
        return cut(str(error), _MAX_WORDS)
    except Exception:
        return "(its text cannot be had)"


def _content(path: str | Path) -> bytes:
    sent = _sent.get(os.path.abspath(path))
    if sent is not None:
        return sent
    try:
        return read_small(path, MAX_BYTES)
    except ValueError as error:
        raise ValueError(f"plugin {error}") from None


def _execute(real: str, shown: str, content: bytes) -> None:
    """Execute a file as a module. Its lines are kept as they are now, for the checksums of its code."""
    stem = re.sub(r"\W", "_", Path(real).stem)
    module = types.ModuleType(f"flare_plugin_{stem}_{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}")
    module.__file__ = real
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        with _told(real, shown), contextlib.redirect_stdout(sys.stderr):
            code = compile(content, real, "exec", dont_inherit=True)
            lines = importlib.util.decode_source(content).splitlines(keepends=True)
            linecache.cache[real] = (len(content), None, lines, real)
            exec(code, module.__dict__)
    except BaseException:
        linecache.cache.pop(real, None)
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
        raise


@contextlib.contextmanager
def _told(real: str, shown: str) -> Iterator[None]:
    """What goes wrong in a plugin as one ValueError: which file, which line, what."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == real]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == real else (lines or [None])[-1]
        words = cut(error.msg, _MAX_WORDS) if isinstance(error, SyntaxError) else _words(error)
        where = "" if line is None else f", line {line}"
        raise ValueError(f"plugin {shown}{where}: {_kind(error)}{words}") from error
