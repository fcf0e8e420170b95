"""Plugin files for tests, and registries that are as they were when a test is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flare.registry import REGISTRIES

POLICY = '''
import numpy as np
import flare

@flare.policy("{name}")
def {function}(problem, *, number=2):
    """The first few that fit."""
    return flare.admit(problem, {order}, max_devices=number)
'''


def policy_file(path: Path, name: str = "mine", *, order: str = "np.arange(problem.num_devices)") -> Path:
    """A file that registers a policy; `order` is an expression, in which devices are taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(POLICY.format(name=name, function="mine", order=order))
    return path


@contextmanager
def registries_as_they_were() -> Iterator[None]:
    """Whatever is registered inside is forgotten."""
    before = {kind: set(registry) for kind, registry in REGISTRIES.items()}
    try:
        yield
    finally:
        for kind, registry in REGISTRIES.items():
            for name in set(registry) - before.get(kind, set()):
                if not registry.origin(name).built_in:
                    del registry[name]
