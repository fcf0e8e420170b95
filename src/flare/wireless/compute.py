"""What the processor of a device costs: time, Eq. (4), and energy."""

from __future__ import annotations

from flare.types import Floats


def compute_s(tau: Floats, cycles_per_sample: Floats | float, batch_size: int, cpu_hz: Floats) -> Floats:
    """Eq. (4): tau local steps of `batch_size` samples on a processor of `cpu_hz`, in seconds."""
    return tau * cycles_per_sample * batch_size / cpu_hz


def compute_energy_j(
    tau: Floats, cycles_per_sample: Floats | float, batch_size: int, cpu_hz: Floats, capacitance: float
) -> Floats:
    """Energy of the same work by the effective-capacitance model: `capacitance` x f^2 for each cycle, in joule."""
    return capacitance * tau * cycles_per_sample * batch_size * cpu_hz**2


def time_and_energy(
    tau: Floats, cycles_per_sample: Floats | float, batch_size: int, cpu_hz: Floats, capacitance: float
) -> tuple[Floats, Floats]:
    """What local steps cost a device: seconds and joule."""
    work = (tau, cycles_per_sample, batch_size, cpu_hz)
    return compute_s(*work), compute_energy_j(*work, capacitance)
