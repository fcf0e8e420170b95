"""The kernels of convolutions and products, compiled for an H100 or H200, which need not be there."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flare.learning.engine.operations import Onto, Pool, Windows

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1", reason="Triton is not there to compile"
)
TYPES = {torch.float32: "*fp32", torch.uint8: "*u8"}


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], dict[str, Any]]:
    """A function that does some work in which kernels are compiled, not started: what became of each, by its name."""
    triton = pytest.importorskip("triton")
    compiler, backends = pytest.importorskip("triton.compiler"), pytest.importorskip("triton.backends.compiler")
    convolutions = pytest.importorskip("flare.learning.engine.convolutions")
    kernels = pytest.importorskip("flare.learning.engine.kernels")
    made: dict[str, Any] = {}

    def compile_one(kernel: Any, _: object, *tensors: torch.Tensor, **named: Any) -> None:
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        signature = dict.fromkeys(kernel.arg_names, "constexpr")
        signature |= {name: TYPES[each.dtype] for name, each in zip(kernel.arg_names, tensors, strict=False)}
        known = {(kernel.arg_names.index(name),): value for name, value in named.items()}
        aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(tensors))}
        source = compiler.ASTSource(kernel, signature, known, aligned)
        done = triton.compile(source, target=backends.GPUTarget("cuda", 90, 32), options=options)
        (tmp_path / "kernel.cubin").write_bytes(done.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [tool, "-res-usage", tmp_path / "kernel.cubin"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        stack = [int(size) for size in re.findall(r"STACK:(\d+)", told)]
        made[kernel.fn.__name__] = {"stack": max(stack), "ptx": done.asm["ptx"], "shared": done.metadata.shared}

    def work_of(work: Callable[[], object]) -> dict[str, Any]:
        work()
        return made

    for module in (convolutions, kernels):
        monkeypatch.setattr(module, "start", compile_one)
    return work_of


SHAPES = {
    "mnist-cnn": (16, 32, Windows((5, 5), (1, 1), (0, 0), (12, 12)), 40),
    "cifar-cnn, first": (3, 32, Windows((5, 5), (1, 1), (0, 0), (32, 32)), 40),
    "cifar-cnn": (32, 64, Windows((5, 5), (1, 1), (0, 0), (14, 14)), 40),
    "pfl-research": (32, 64, Windows((3, 3), (1, 1), (0, 0), (30, 30)), 10),
}


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("name", SHAPES)
def test_convolutions_run_on_the_tensor_cores_of_hopper_from_registers_that_suffice(
    name: str, precision: str, compiled: Callable[[Callable[[], object]], dict[str, Any]]
) -> None:
    from flare.learning.engine import convolutions

    channels, out, windows, samples = SHAPES[name]
    weight = torch.empty(1, out, channels * math.prod(windows.kernel))
    x, dy = torch.empty(1, channels, *windows.side, samples), torch.empty(1, out, *windows.out_side, samples)
    pool, bias = Pool((2, 2), windows.out_side), torch.empty(1, out)

    def work() -> None:
        convolutions.convolve(weight, x, windows, precision, bias=bias, pool=pool, relu=True)
        convolutions.convolve_back(weight, dy, windows, precision)

    made = compiled(work)
    assert set(made) == {"_lay", "_convolve", "_convolve_back"}
    for kernel in ("_convolve", "_convolve_back"):
        assert made[kernel]["stack"] == 0  # nothing is spilled
        assert made[kernel]["shared"] < 110_000  # two at least on a multiprocessor
        assert "wgmma.mma_async" in made[kernel]["ptx"]
        copied = set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^;]*?, (0x[0-9a-f]+)", made[kernel]["ptx"]))
        assert copied <= ({"0x10"} if samples % 4 == 0 else {"0x8", "0x10"})  # numbers are read several at a time


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("channels", [4, 8])
def test_the_way_back_of_few_channels_runs_on_the_tensor_cores_too_and_in_half_the_steps(
    channels: int, precision: str, compiled: Callable[[Callable[[], object]], dict[str, Any]]
) -> None:
    from flare.learning.engine import convolutions

    windows = Windows((5, 5), (1, 1), (0, 0), (12, 12))  # of mnist-cnn, a quarter and half as wide
    weight, dy = torch.empty(1, 2 * channels, 25 * channels), torch.empty(1, 2 * channels, *windows.out_side, 40)
    made = compiled(lambda: convolutions.convolve_back(weight, dy, windows, precision))
    assert made["_convolve_back"]["stack"] == 0
    assert "wgmma.mma_async" in made["_convolve_back"]["ptx"]
    cut = convolutions.choose_place_tiles(channels, 2 * channels, 25, back=True, precision=precision)
    assert cut.bk == 16


@pytest.mark.parametrize("swapped", [False, True])
def test_products_that_are_rounded_by_hand_spill_nothing(
    swapped: bool, compiled: Callable[[Callable[[], object]], dict[str, Any]]
) -> None:
    from flare.learning.engine import kernels

    window, tiles = kernels.Window((5, 5), (14, 14), 40), kernels.Tiles(64, 128, 32, 4, 3, 1, "rounded", swapped)
    dy, x = torch.empty(1, 64, 4000), torch.empty(1, 32, 14, 14, 40)
    made = compiled(lambda: kernels.launch(dy, x, 800, 4000, "tf32", window=window, tiles=tiles))
    assert made["_product"]["stack"] == 0
    assert "wgmma.mma_async" in made["_product"]["ptx"]


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_the_way_back_of_few_samples_spills_nothing_and_moves_numbers_four_at_a_time(
    precision: str, is_added: bool, compiled: Callable[[Callable[[], object]], dict[str, Any]]
) -> None:
    from flare.learning.engine import kernels

    weight, dy, x = torch.empty(1, 128, 12544), torch.empty(1, 128, 10), torch.empty(1, 12544, 10)
    onto = Onto(weight, torch.empty(1, 1)) if is_added else None
    made = compiled(lambda: kernels.back_of_few(weight, dy, x, onto, precision))
    assert made["_back_of_few"]["stack"] == 0
    assert "wgmma.mma_async" in made["_back_of_few"]["ptx"]
    assert "st.global.v4" in made["_back_of_few"]["ptx"]
