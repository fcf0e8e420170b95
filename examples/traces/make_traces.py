"""Write the example traces: ten rounds of eight devices whose channels fade, in every form that FLARE reads.

python examples/traces/make_traces.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat

import flare

ROUNDS, DEVICES, ANTENNAS = 10, 8, 2
CORRELATION = 0.9  # of a coefficient with the same one a round later


def channels() -> NDArray[np.complex128]:
    """Coefficients h of shape (rounds, devices, antennas): a path loss each, Rayleigh fading that drifts."""
    rng = flare.stream(1, "example traces")
    scattered = rng.standard_normal((ROUNDS, DEVICES, ANTENNAS, 2)) @ [1, 1j] / np.sqrt(2)
    for index in range(1, ROUNDS):
        fresh = np.sqrt(1 - CORRELATION**2) * scattered[index]
        scattered[index] = CORRELATION * scattered[index - 1] + fresh
    amplitude = 10 ** (-np.linspace(85, 102, DEVICES) / 20)  # path losses of 85 to 102 dB
    return np.asarray(amplitude[:, np.newaxis] * scattered)


def write(folder: Path) -> None:
    h = channels()
    gain_db = 10 * np.log10(np.sum(np.abs(h) ** 2, axis=2))  # what maximum-ratio combining receives
    rng = flare.stream(1, "example traces", "devices")
    cpu_hz = np.tile(rng.uniform(2e9, 4e9, DEVICES), (ROUNDS, 1))
    tau = rng.integers(1, 9, (ROUNDS, DEVICES))

    rows = [
        f"{index},{device},{gain_db[index, device]:.3f},{cpu_hz[index, device]:.4g},{tau[index, device]}"
        for index in range(ROUNDS)
        for device in range(DEVICES)
    ]
    (folder / "rows.csv").write_text("\n".join(["round,device,gain_db,cpu_hz,tau", *rows]) + "\n")

    names = ",".join(f"gain_db_{device}" for device in range(DEVICES))
    lines = [",".join(f"{value:.3f}" for value in row) for row in gain_db]
    (folder / "wide.csv").write_text("\n".join([names, *lines]) + "\n")

    lines = [",".join(f"{one.real:.6g}{one.imag:+.6g}i" for one in row) for row in h[:, :, 0]]
    (folder / "matrix_h.csv").write_text("\n".join(lines) + "\n")  # as MATLAB's writematrix(h, 'matrix_h.csv')

    np.savez_compressed(folder / "antennas.npz", h=h)
    savemat(folder / "antennas.mat", {"h": h}, do_compression=True)  # as MATLAB's save('antennas.mat', 'h')


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
