"""Selection rules of other authors, one file a system: docs/systems.md says of each what was decided and what it costs.

The modules register their policies when they are imported.
"""

from flare.scheduling.systems import amiri, divfl, fedcgd, fedcs, oort, power_of_choice

__all__ = ["amiri", "divfl", "fedcgd", "fedcs", "oort", "power_of_choice"]
