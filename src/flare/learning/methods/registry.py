"""Methods by name.

    @method("pulled")
    @dataclass(frozen=True)
    class Pulled(PlainMethod):
        mu: float = setting(0.1, "weight of the pull", at_least=0.0)

        def rules(self, state, now, common_gradient):
            return equal_rates(now, mu=self.mu)

The fields of the dataclass are the options of the method: `[learning.options]` of a configuration sets them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass
from typing import Any, ClassVar, TypeVar

from flare.config import LearningConfig
from flare.config.declared import Interface, Kind
from flare.learning.methods.base import Method
from flare.registry import Registry, first_line

INTERFACE = Interface("method")
_PARTS = (
    *("uplink_models", "downlink_models", "needs_gradients", "sends_control", "keeps_models", "on_nodes"),
    *("needs_codec", "needs_widths", "fitted", "sizes", "asynchronous", "needs_fresh", "max_devices"),
    *("needs_smoothness", "step_cost", "start", "steps", "enrol", "reference_steps", "rules", "reducer"),
)
M = TypeVar("M", bound=type[Any])


@dataclass(frozen=True, eq=False)
class MethodKind(Kind):
    """A registered method: the class that it is made of, and the options that the class takes."""

    interface: ClassVar = INTERFACE
    make: Callable[..., Method]


METHODS: Registry[MethodKind] = Registry("method", "methods")
"""Every registered method by name, in the order of registration."""


def method(name: str) -> Callable[[M], M]:
    """Register the decorated class as the method `name`: a dataclass whose fields are its options."""

    METHODS.refuse_bare(name, "flare.method")

    def register(made_of: M) -> M:
        _refuse_incomplete(name, made_of)
        options = INTERFACE.options_of(name, made_of)
        taken = next((option for option in options if option in _PARTS), None)
        if taken is not None:
            raise ValueError(f"method '{name}': its option '{taken}' has the name of a part of every method; rename it")
        METHODS.add(MethodKind(name, first_line(made_of), options, made_of), made_of)
        return made_of

    return register


def make_method(config: LearningConfig) -> Method:
    """The method that the settings name, with its options; ValueError where there is none, or an option is wrong."""
    kind = METHODS.find(config.method)
    return kind.make(**kind.check_options(config.options))


def _refuse_incomplete(name: str, made_of: Any) -> None:
    if not isinstance(made_of, type):
        raise ValueError(f"method '{name}': a method is a class; decorate a class that derives from PlainMethod")
    if any(isinstance(each, Field) for each in vars(made_of).values()):
        raise ValueError(f"method '{name}': write @method above @dataclass, so that its fields are known as options")
    missing = [part for part in _PARTS if not hasattr(made_of, part)]
    if missing:
        raise ValueError(
            f"method '{name}': class {made_of.__name__} lacks {', '.join(missing)}; derive it from "
            "flare.learning.methods.PlainMethod, which has all but rules"
        )
