"""Models as Flower sends them: one array for each trained parameter, by name, in float32."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from flare.learning.flat import FlatModel
from flare.rng import stream

_NPY_HEADER_BYTES = 4096  # more than numpy writes before the numbers of an array


def node_model(module: nn.Module) -> FlatModel:
    """A module as a node trains it, by itself and in the mode in which its user made it."""
    return FlatModel(module, on_node=True)


def trained_arrays(module: nn.Module) -> ArrayRecord:
    """What is sent of a module: its trained parameters."""
    model = node_model(module)
    return _record(model.views(model.flatten()).items())


def difference(module: nn.Module, start: ArrayRecord) -> ArrayRecord:
    """A device's update: its trained parameters less those that it was sent."""
    model = node_model(module)
    return _record(
        (name, part - _tensor(start[name]).to(part.device)) for name, part in model.views(model.flatten()).items()
    )


def load_arrays(module: nn.Module, arrays: ArrayRecord) -> None:
    """Set the trained parameters of a module; ValueError where they are not those of this model."""
    model = node_model(module)
    layout = Layout(trained_arrays(module))
    set_weights(model, layout.flatten(arrays))


def set_weights(model: FlatModel, weights: Tensor) -> None:
    """Give the module of a model these weights, shape (weights,), in place."""
    with torch.no_grad():
        for parameter, part in zip(model.parameters, model.views(weights).values(), strict=True):
            parameter.copy_(part)


@contextmanager
def own_draws(seed: int, index: int, device: int) -> Iterator[None]:
    """What a node draws from PyTorch in here, such as dropout, depends on the run, the round and its device alone."""
    with torch.random.fork_rng(devices=[]):
        _seed_torch(int(stream(seed, "node", index, device).integers(2**63)))
        yield


def _seed_torch(seed: int) -> None:
    """Seed PyTorch as `torch.manual_seed` does. Without an accelerator that function still keeps the call, with its
    stack as text, for an accelerator that may come, which takes time: then only the CPU's generator is seeded."""
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@final
class Layout:
    """Names and shapes of a model's arrays, and the one vector that stands for them; made from its first arrays."""

    def __init__(self, arrays: ArrayRecord) -> None:
        if not arrays:
            raise ValueError("the initial arrays are empty; give those of the model: trained_arrays(module)")
        self.shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.num_weights = sum(self.sizes.values())

    def flatten(self, arrays: ArrayRecord, out: NDArray[np.float32] | None = None) -> Tensor:
        """The arrays as one vector, shape (weights,), in `out` where it is given; ValueError says what is not as in
        this model. Names, shapes and types are compared before a byte is read, and again with what the bytes hold."""
        if set(arrays) != set(self.shapes):
            missing, extra = sorted(set(self.shapes) - set(arrays)), sorted(set(arrays) - set(self.shapes))
            raise ValueError(f"arrays do not match the model: missing {_listed(missing)}, unknown {_listed(extra)}")
        flat = np.empty(self.num_weights, dtype=np.float32) if out is None else out
        start = 0
        for name, size in self.sizes.items():
            flat[start : start + size] = self._checked(name, self.shapes[name], arrays[name]).reshape(-1)
            start += size
        return torch.from_numpy(flat)

    @cached_property
    def room(self) -> NDArray[np.float32]:
        """Room for one vector, always the same: asking the system for new memory takes longer than filling it."""
        return np.empty(self.num_weights, dtype=np.float32)

    def arrays(self, flat: Tensor) -> ArrayRecord:
        """The vector as arrays by name."""
        parts = torch.split(flat, list(self.sizes.values()))
        return _record((name, part.view(self.shapes[name])) for name, part in zip(self.shapes, parts, strict=True))

    def _checked(self, name: str, shape: tuple[int, ...], array: Array) -> NDArray[np.float32]:
        if tuple(array.shape) != shape:
            raise ValueError(f"array '{name}' has shape {_short(tuple(array.shape))}; it must be {shape}")
        if array.dtype != "float32":
            raise ValueError(f"array '{name}' is {_short(array.dtype)}; it must be float32")
        if len(array.data) > 4 * self.sizes[name] + _NPY_HEADER_BYTES:
            raise ValueError(f"array '{name}' has {len(array.data)} bytes; its shape {shape} needs fewer")
        try:
            held = _held(array)
        except Exception as error:  # NumPy's reader of headers raises whatever it likes on bytes made up to break it
            raise ValueError(f"array '{name}' cannot be read: {_short(error)}") from None
        if held.dtype != np.float32 or held.shape != shape:
            raise ValueError(f"array '{name}' holds {held.dtype} of shape {held.shape}, not what it says")
        return held


def _held(array: Array) -> NDArray[Any]:
    """What the bytes of an array hold, in NumPy's format, without a copy; objects, which are pickled there, are not
    read."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"its serialisation is '{array.stype}'; it must be 'numpy.ndarray'")
    content = io.BytesIO(array.data)
    version = np.lib.format.read_magic(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"version {version} of NumPy's format is not one of {list(read_header)}")
    shape, fortran_order, dtype = read_header[version](content)
    numbers = np.frombuffer(array.data, dtype=dtype, count=math.prod(shape), offset=content.tell())
    return numbers.reshape(shape, order="F" if fortran_order else "C")


def _record(named: Iterable[tuple[str, Tensor]]) -> ArrayRecord:
    return ArrayRecord({name: Array(part.detach().cpu().numpy()) for name, part in named})


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.numpy())


def _listed(names: list[str]) -> str:
    return ", ".join(_short(name) for name in names[:3]) + (" ..." if len(names) > 3 else "") if names else "none"


def _short(value: object) -> str:
    return str(value)[:80]
