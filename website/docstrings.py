"""Docstrings for the reference: where ours say "name : what it is", the parser of mkdocstrings expects a type."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"Parameters\n----------\n((?:.+(?:\n|$))+)")
ENTRY = re.compile(r"^([\w*, ]+?) : (.+)$", re.MULTILINE)


class Descriptions(griffe.Extension):  # type: ignore[misc]
    """Moves what a parameter is to where a description belongs (its type comes from the signature), and the parameters
    to the end: whatever else came after them would be taken for parameters."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute that is read."""
        if obj.docstring is not None and (found := SECTION.search(obj.docstring.value)):
            words = obj.docstring.value.replace(found[0], "").rstrip()
            listed = ENTRY.sub(r"\1\n    \2", found[1])
            obj.docstring.value = f"{words}\n\nParameters\n----------\n{listed}"
