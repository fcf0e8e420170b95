"""Selection rules of other authors, one file a system: docs/systems.md says of each what was decided and what it costs.

The modules register their policies when they are imported.
"""

from flare.scheduling.systems import (
    amiri,
    chen,
    divfl,
    fedcgd,
    fedcs,
    hu,
    luo,
    oort,
    power_of_choice,
    ren,
    tran,
    xu,
)

__all__ = ["amiri", "chen", "divfl", "fedcgd", "fedcs", "hu", "luo", "oort", "power_of_choice", "ren", "tran", "xu"]
