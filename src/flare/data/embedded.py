"""Data sets that need no files: scikit-learn's digits, and the synthetic family of FedProx."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flare.data.dataset import Dataset, Labels, Samples
from flare.rng import stream

DIGITS_MEAN, DIGITS_STD = 0.3053, 0.3761  # over the training pixels, scaled to [0, 1]
DIGITS_TEST_SAMPLES = 360

MAX_SYNTHETIC_DEVICES = 20_000  # each has some 450 samples of 60 numbers
SYNTHETIC_FEATURES, SYNTHETIC_CLASSES = 60, 10
_MIN_SAMPLES, _LOG_MEAN, _LOG_STD = 50, 4.0, 2.0  # samples of a device: 50 + lognormal(4, 2)
_TEST_SHARE = 0.1


def digits() -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels; the test samples are always the same 360, whatever the seed."""
    table = _digits_table()
    images = table[:, :-1].reshape(-1, 1, 8, 8) / np.float32(16.0)  # (samples, 1, 8, 8), in [0, 1]
    x = ((images - DIGITS_MEAN) / DIGITS_STD).astype(np.float32)
    y = table[:, -1].astype(np.int64)
    order = stream(0, "digits", "split").permutation(len(y))
    test, train = np.sort(order[:DIGITS_TEST_SAMPLES]), np.sort(order[DIGITS_TEST_SAMPLES:])
    return Dataset("digits", x[train], y[train], x[test], y[test], num_classes=10)


def _digits_table() -> Samples:
    """Pixels and, last, the label of each digit, from the file that scikit-learn has them in.

    The package itself is not imported: that takes longer than many a run.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ValueError("the data set digits is in scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.float32)


def synthetic(alpha: float, beta: float, *, num_devices: int, seed: int) -> Dataset:
    """Synthetic(alpha, beta) of Li et al., Federated Optimization in Heterogeneous Networks (FedProx), section 5.1.

    Device k labels its samples by a model of its own, y = argmax(W_k x + b_k), with all entries of W_k and b_k from
    N(u_k, 1), u_k ~ N(0, alpha). Its samples are from N(v_k, Sigma) with Sigma diagonal, Sigma_jj = j^-1.2, and the
    entries of v_k from N(B_k, 1), B_k ~ N(0, beta). As in the authors' code, alpha and beta are standard deviations,
    a device has 50 + lognormal(4, 2) samples, and a tenth of them is set aside for the test.
    """
    if num_devices > MAX_SYNTHETIC_DEVICES:
        raise ValueError(
            f"synthetic data for {num_devices} devices would not fit into memory; take at most {MAX_SYNTHETIC_DEVICES} "
            "devices (wireless.num_devices)"
        )
    parts = [_synthetic_device(alpha, beta, stream(seed, "synthetic", device)) for device in range(num_devices)]
    held_out = [max(1, round(len(y) * _TEST_SHARE)) for _, y in parts]
    train = [(x[cut:], y[cut:]) for (x, y), cut in zip(parts, held_out, strict=True)]
    test = [(x[:cut], y[:cut]) for (x, y), cut in zip(parts, held_out, strict=True)]
    return Dataset(
        "synthetic",
        np.concatenate([x for x, _ in train]),
        np.concatenate([y for _, y in train]),
        np.concatenate([x for x, _ in test]),
        np.concatenate([y for _, y in test]),
        num_classes=SYNTHETIC_CLASSES,
        owner=np.repeat(np.arange(num_devices), [len(y) for _, y in train]),
    )


def _synthetic_device(alpha: float, beta: float, rng: np.random.Generator) -> tuple[Samples, Labels]:
    num_samples = _MIN_SAMPLES + int(rng.lognormal(_LOG_MEAN, _LOG_STD))
    model_mean, sample_mean = rng.normal(0.0, alpha), rng.normal(0.0, beta)  # u_k, B_k
    weights = rng.normal(model_mean, 1.0, (SYNTHETIC_FEATURES, SYNTHETIC_CLASSES))  # W_k, transposed
    bias = rng.normal(model_mean, 1.0, SYNTHETIC_CLASSES)  # b_k
    centre = rng.normal(sample_mean, 1.0, SYNTHETIC_FEATURES)  # v_k
    spread = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6  # square root of Sigma's diagonal
    x = rng.normal(centre, spread, (num_samples, SYNTHETIC_FEATURES))
    y = np.argmax(x @ weights + bias, axis=1)
    return x.astype(np.float32), y.astype(np.int64)
