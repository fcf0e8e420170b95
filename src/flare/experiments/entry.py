"""What the curves of experiments are called: as `flare report` calls the same runs, by the same function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

from flare.config import Config, override
from flare.report.group_labels import full_name, label_of
from flare.report.run_groups import settings_table


@final
@dataclass(frozen=True)
class Entry:
    """Runs of a method with a policy: the settings that they change, and which settings, beside method and policy, set
    them apart from the other curves (`told_by`, in the order in which they are named)."""

    changes: tuple[str, ...]
    told_by: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """METHOD:POLICY and what sets it apart: the name of a curve."""
        return _names(self)[0]

    @property
    def full_name(self) -> str:
        """The label, with the paper's name in brackets where it has one: for legends and sentences."""
        return _names(self)[1]

    def at(self, change: str, *told_by: str) -> Entry:
        """The same with one more setting, told by these settings instead where some are given, else by that one too."""
        return Entry((*self.changes, change), told_by or (*self.told_by, change.partition("=")[0]))


def entry(method: str, policy: str, *changes: str, told_by: tuple[str, ...] = ()) -> Entry:
    """A method with a policy, and what it changes beside."""
    return Entry((f"learning.method={method}", f"scheduling.policy={policy}", *changes), told_by)


@lru_cache(maxsize=1024)
def _names(one: Entry) -> tuple[str, str]:
    """The label and the full name."""
    table = settings_table(override(Config(), one.changes))
    label = label_of(table, one.told_by)
    return label, full_name(label, table)


def listed(names: list[str]) -> str:
    """Names in a row, as a sentence has them."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
