"""Which runs `flare run` and `flare compare` carry out, and in which folders: settings into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flare.cli.data import watched
from flare.cli.options import DATA, METHOD, MODEL, PARTS, POLICY, dealt, of_each
from flare.config import Config, DataConfig
from flare.data.catalogue import CATALOGUE
from flare.data.fetch import cache_state, fetch
from flare.sweeps import Task, begin


def combinations(
    whole: Config, entries: Sequence[str], methods: str, policies: str, seeds: int, texts: Sequence[str] = ()
) -> list[Config]:
    """One configuration for each pair of method and policy and each seed; `texts` are options, `name=value`.

    A policy or method gets those of the options that it has; ValueError for an option that none of them has. All
    policies get `max_devices`, since some limited and some not would be no comparison: one that knows no limit refuses.
    """
    pairs = [_pair(entry) for entry in entries]
    if methods or policies or not pairs:
        pairs += [
            (method, policy)
            for method in _words(methods) or [whole.learning.method]
            for policy in _words(policies) or [whole.scheduling.policy]
        ]
    if len(set(pairs)) < len(pairs):
        raise ValueError("a pair of method and policy is given twice; each is run once")
    named = {METHOD: [method for method, _ in pairs], POLICY: [policy for _, policy in pairs]}
    own = dealt(whole, named[METHOD], named[POLICY], texts)
    for part in (MODEL, DATA):
        name = part.name(whole)
        whole = part.set(whole, name, of_each(part, [name], part.options(whole), own[part])[name])
    options = {part: of_each(part, names, part.options(whole), own[part]) for part, names in named.items()}
    return [
        METHOD.set(
            POLICY.set(replace(whole, seed=whole.seed + seed), policy, options[POLICY][policy]),
            method,
            options[METHOD][method],
        )
        for method, policy in pairs
        for seed in range(seeds)
    ]


def _pair(entry: str) -> tuple[str, str]:
    method, colon, policy = entry.partition(":")
    if not colon or not method or not policy:
        raise ValueError(f"--entry: '{entry}' is not of the form METHOD:POLICY, such as flare:greedy")
    return method, policy


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def created(
    folders: Sequence[Path], configs: Sequence[Config], force: bool, *, listing: Path | None = None
) -> list[Task]:
    """New runs. Everything that can be wrong with their settings is found before a folder is touched.

    The runs of a comparison are first listed in the folder `listing`.
    """
    for one in configs:
        for part in PARTS:
            part.check(one)
        fetch_if_needed(one.data)
    tasks = [Task(str(folder), one, folder) for folder, one in zip(folders, configs, strict=True)]
    begin(tasks, force=force, listing=listing)
    return tasks


def fetch_if_needed(data: DataConfig) -> None:
    """Bring a data set that is not there yet into the cache, with a progress bar."""
    if data.name in CATALOGUE and not data.folder and cache_state(data.name) != "cached":
        with watched() as progress:
            fetch(data.name, folder="", progress=progress)


def run_name(method: str, policy: str, seed: int) -> str:
    """What a run is called."""
    return f"{method}-{policy}-seed{seed}"


def name_of(whole: Config) -> str:
    """What a run with these settings is called."""
    return run_name(whole.learning.method, whole.scheduling.policy, whole.seed)


def new_folder(base: Path, name: str) -> Path:
    """The first of name, name-2, name-3, ... that is not there yet."""
    number = 1
    while (folder := base / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder
