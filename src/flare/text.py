"""Text that somebody else wrote, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as one line in which nothing acts on a terminal: white space becomes a space, and what cannot be printed
    (escapes, marks that turn the direction of writing, halves of characters) a replacement character."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
