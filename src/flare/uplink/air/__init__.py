"""Over the air: all devices send at once on the whole band, and the channel adds (`scheme.py` has the mathematics)."""

from flare.uplink.air.fading import Fading
from flare.uplink.air.link import AirLink, Moments, moments
from flare.uplink.air.noise import air_key, normal
from flare.uplink.air.plan import AirPlan, Heard, Received, plan_air
from flare.uplink.air.scheme import AIR_SCHEMES, AirScheme, Precoding, air_scheme, make_air_scheme
from flare.uplink.air.schemes import Cotaf, LeastError, TruncatedInversion
from flare.uplink.air.selection import AirChoice, air_objective, best_senders

__all__ = [
    "AIR_SCHEMES",
    "AirChoice",
    "AirLink",
    "AirPlan",
    "AirScheme",
    "Cotaf",
    "Fading",
    "Heard",
    "LeastError",
    "Moments",
    "Precoding",
    "Received",
    "TruncatedInversion",
    "air_key",
    "air_objective",
    "air_scheme",
    "best_senders",
    "make_air_scheme",
    "moments",
    "normal",
    "plan_air",
]
