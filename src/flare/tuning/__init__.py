"""Settings that reach a test accuracy in the least simulated time, or with the least energy: found by trying.

flare.tune("config.toml", target=0.9, trials=200, out="out/tuning")
"""

from flare.tuning.space import Choice, Range, Space, read_search, space_of
from flare.tuning.trial import State, Trial
from flare.tuning.tuned import Tuned, carry_out, make_tuning, tune

__all__ = [
    "Choice",
    "Range",
    "Space",
    "State",
    "Trial",
    "Tuned",
    "carry_out",
    "make_tuning",
    "read_search",
    "space_of",
    "tune",
]
