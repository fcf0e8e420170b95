"""Docstrings for the reference: where ours say "name : what it is", the parser of mkdocstrings expects a type."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?<=Parameters\n----------\n)(?:.+\n?)+")
ENTRY = re.compile(r"^([\w*, ]+?) : (.+)$", re.MULTILINE)


class Descriptions(griffe.Extension):  # type: ignore[misc]
    """Moves what a parameter is to where a description belongs; its type comes from the signature."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute that is read."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub(lambda found: ENTRY.sub(r"\1\n    \2", found[0]), obj.docstring.value)
