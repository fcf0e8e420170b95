"""The parts of a run whose code may be a user's own, and what its checksum is called in the identity of a run."""

from __future__ import annotations

CODE_PARTS = {
    "method": "learning.method",
    "policy": "scheduling.policy",
    "codec": "uplink.codec",
    "downlink codec": "wireless.downlink_codec",
    "air scheme": "uplink.air_scheme",
}
"""The parts of a run whose code may be a user's own, each with the setting that names it."""


def code_key(part: str) -> str:
    """What the checksum of the code of a part is called in an identity."""
    return f"{part} code"
