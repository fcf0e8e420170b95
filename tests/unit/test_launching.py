"""Kernels are started as they were compiled, without asking Triton which one it is."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

launching = pytest.importorskip(
    "flare.learning.engine.launching", reason="Triton is not installed", exc_type=ImportError
)


class Compiled:
    """A compiled kernel that notes with what it is started; one of another version takes other arguments."""

    def __init__(self, started: list[tuple[Any, ...]], takes: int) -> None:
        self.started, self.takes = started, takes

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any) -> None:
            if len(arguments) != self.takes:
                raise TypeError(f"takes {self.takes} arguments")
            self.started.append((grid, *arguments))

        return run


class Kernel:
    """A kernel that Triton compiles and starts."""

    arg_names = ("x", "size", "block", "relu")

    def __init__(self, takes: int = 4) -> None:
        self.by_triton: list[dict[str, Any]] = []
        self.directly: list[tuple[Any, ...]] = []
        self.takes = takes

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **named: Any) -> Compiled:
            self.by_triton.append(named)
            return Compiled(self.directly, self.takes)

        return run


def started(kernel: Kernel, x: torch.Tensor, size: int, relu: bool = True) -> None:
    launching._start_compiled(kernel, (3, 2), (x, size), {"relu": relu, "block": 64, "num_warps": 4})


def test_a_kernel_is_compiled_once_and_started_then_with_its_arguments_in_their_order() -> None:
    kernel, x, other = Kernel(), torch.zeros(8), torch.ones(8)
    started(kernel, x, 8)
    started(kernel, other, 8)
    assert len(kernel.by_triton) == 1
    assert kernel.directly == [((3, 2, 1), other, 8, 64, True)]


def test_another_kernel_is_compiled_where_numbers_lie_elsewhere_or_are_others() -> None:
    kernel, x = Kernel(), torch.zeros(9)
    cases = [(x, 8, True), (x[1:], 8, True), (x, 16, True), (x, 8, False), (x.double(), 8, True)]
    for case in cases:
        started(kernel, *case)
    assert len(kernel.by_triton) == len(cases)
    for case in cases:
        started(kernel, *case)
    assert len(kernel.by_triton) == len(kernel.directly) == len(cases)


def test_where_a_compiled_kernel_takes_other_arguments_triton_starts_it() -> None:
    kernel, x = Kernel(takes=2), torch.zeros(8)
    for _ in range(3):
        started(kernel, x, 8)
    assert len(kernel.by_triton) == 3
    assert not kernel.directly


class Warm:
    """A kernel that was compiled in a rehearsal; `module` is there where it has been started."""

    def __init__(self, signature: dict[str, str], module: object = None) -> None:
        self.src = type("Source", (), {"signature": signature})
        self.metadata, self.module = object(), module


def test_what_starts_kernels_is_made_in_the_rehearsal_once_for_those_with_the_same_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    made: list[Any] = []

    def make(source: Any, _: object) -> None:
        made.append(source.signature)
        raise RuntimeError("there is no compiler, says the test")  # Triton tells it at the start in earnest

    monkeypatch.setattr(launching.triton.knobs.cache, "dir", str(tmp_path))
    active = type("Driver", (), {"launcher_cls": staticmethod(make)})
    monkeypatch.setattr(launching.triton.runtime.driver, "_active", active, raising=False)
    kinds = [{"x": "*fp32", "n": "i32"}, {"y": "*fp32", "m": "i32"}, {"x": "*fp32", "n": "constexpr"}]
    with launching.rehearsal():
        launching._rehearsed.get().extend([*map(Warm, kinds), Warm({"z": "i64"}, module=1), None])
    assert sorted(map(str, made)) == sorted(map(str, [kinds[1], kinds[2]]))
    assert launching._rehearsed.get() is None


def asked_in_rehearsal(works: dict[str, Any], finished: list[Any]) -> None:
    """Ask for kernels to be compiled, as Triton does at their first start."""
    mode = pytest.importorskip("triton.runtime._async_compile").active_mode.get()
    for key, work in works.items():
        mode.submit(key, work, finished.append)


def test_kernels_are_compiled_when_all_are_known_and_what_cannot_be_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if not hasattr(launching.triton, "AsyncCompileMode"):
        pytest.skip("this version of Triton compiles at once")
    monkeypatch.setattr(launching.triton.knobs.cache, "dir", str(tmp_path))
    finished: list[Any] = []

    def fail() -> Any:
        raise RuntimeError("cannot be compiled, says the test")

    with launching.rehearsal():
        asked_in_rehearsal({"a": lambda: "first", "b": fail, "c": lambda: "last"}, finished)
        assert not finished
    assert sorted(finished) == ["first", "last"]
    assert list((tmp_path / "flare").glob("*.lock"))
    with contextlib.suppress(ValueError), launching.rehearsal():
        asked_in_rehearsal({"d": lambda: "more"}, finished)
        raise ValueError("in the midst")
    assert "more" not in finished  # after an error nothing is compiled any more
    with launching.rehearsal():
        asked_in_rehearsal({"e": lambda: "again"}, finished)
    assert "again" in finished


@pytest.mark.parametrize("why", [KeyboardInterrupt(), RuntimeError("says the test")])
def test_where_compiling_is_broken_off_nobody_waits_for_kernels_in_vain(
    why: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if not hasattr(launching.triton, "AsyncCompileMode"):
        pytest.skip("this version of Triton compiles at once")
    monkeypatch.setattr(launching.triton.knobs.cache, "dir", str(tmp_path))

    def broken(*_: Any) -> None:
        raise why

    monkeypatch.setattr(launching, "share", broken)
    finished: list[Any] = []
    with pytest.raises(type(why)), launching.rehearsal():
        asked_in_rehearsal({"a": lambda: "first"}, finished)
    monkeypatch.undo()
    assert not finished
    assert launching._rehearsed.get() is None
    waiting = launching._Waiting()
    future = waiting.submit(lambda: 1)
    future._key = "key"
    waiting.end(ValueError)
    assert isinstance(future.exception(), Exception)
    other = waiting.submit(lambda: 2)  # Triton was interrupted before it could say what this is of
    with pytest.raises(AttributeError):
        waiting.end(None)
    assert isinstance(other.exception(), Exception)
