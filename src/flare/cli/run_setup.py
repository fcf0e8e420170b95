"""Which runs `flare run` and `flare compare` carry out, and in which folders: settings into tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from flare.cli.console import say
from flare.cli.data import watched
from flare.config import Config, DataConfig
from flare.data.catalogue import CATALOGUE
from flare.data.fetch import cache_state, fetch
from flare.sweeps import Task, begin
from flare.sweeps.entries import TextEntry, of_entries, policies_in_vain
from flare.sweeps.parts import check_parts


def combinations(
    whole: Config, entries: Sequence[str], methods: str, policies: str, seeds: int, texts: Sequence[str] = ()
) -> list[tuple[str, Config, str]]:
    """The name, the settings and the label of each entry with each seed; `texts` are options, `name=value`. Where
    policies are not asked, a line on standard error says so."""
    named = [TextEntry.read(entry, "--entry: ") for entry in entries]
    if methods or policies or not named:
        named += [
            TextEntry(method, policy)
            for method in _words(methods) or [whole.learning.method]
            for policy in _words(policies) or [whole.scheduling.policy]
        ]
    configs = of_entries(whole, named, texts, "--entry ")
    if (in_vain := policies_in_vain(configs)) is not None:
        say(f"warning: {in_vain}", stderr=True)
    numbers = range(whole.seed, whole.seed + seeds)
    return [
        (entry.name(seed), replace(one, seed=seed), entry.label)
        for one, entry in zip(configs, named, strict=True)
        for seed in numbers
    ]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def created(
    folders: Sequence[Path],
    configs: Sequence[Config],
    force: bool,
    *,
    listing: Path | None = None,
    labels: Sequence[str] = (),
) -> list[Task]:
    """New runs. Everything that can be wrong with their settings is found before a folder is touched.

    The runs of a comparison are first listed in the folder `listing`; `labels` are what each is called in reports, ""
    where nobody has said.
    """
    for one in configs:
        check_parts(one)
        fetch_if_needed(one.data)
    tasks = [
        Task(str(folder), one, folder, label=label)
        for folder, one, label in zip(folders, configs, labels or [""] * len(folders), strict=True)
    ]
    with redirect_stdout(sys.stderr):  # for what plugins print: standard output is for results
        begin(tasks, force=force, listing=listing)
    return tasks


def fetch_if_needed(data: DataConfig) -> None:
    """Bring a data set that is not there yet into the cache, with a progress bar."""
    if data.name in CATALOGUE and not data.folder and cache_state(data.name) != "cached":
        with watched() as progress:
            fetch(data.name, folder="", progress=progress)
