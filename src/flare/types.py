"""The kinds of arrays that every station hands on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Numbers, one for each device, round or weight."""

Flags = NDArray[np.bool_]
"""Whether something holds, for each device."""

Indices = NDArray[np.intp]
"""Which devices or samples, counted from 0."""
