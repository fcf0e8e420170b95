"""How updates travel: codecs by name, random draws for them, and sending with error feedback."""

from flare.uplink.codec import Codec, NotFiniteError
from flare.uplink.draws import draw, keys
from flare.uplink.plain import Float16, Plain
from flare.uplink.quantisers import Qsgd, Ternary
from flare.uplink.registry import CODECS, codec, make_codec
from flare.uplink.send import Arrived, Sent, arrive, send
from flare.uplink.sign import Sign
from flare.uplink.topk import TopK

__all__ = [
    "CODECS",
    "Arrived",
    "Codec",
    "Float16",
    "NotFiniteError",
    "Plain",
    "Qsgd",
    "Sent",
    "Sign",
    "Ternary",
    "TopK",
    "arrive",
    "codec",
    "draw",
    "keys",
    "make_codec",
    "send",
]
