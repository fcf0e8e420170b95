"""How long `flare reproduce` takes, from the start of the command to the last picture.

    PYTHONPATH=src python benchmarks/reproduction.py [--only NAME ...] [--processes N] [--keep DIR] [--out DIR]

writes reproduction.json and reproduction.md into docs/benchmarks, a row for each command, as soon as it is measured;
rows of commands that are not measured stay. A command is what a user types, and begins with nothing: no runs, and the
first one no kernels that were compiled before. Told apart are the time until the first round of any run, that until the
last one, and the rest, in which claims are judged and figures drawn; and how busy the GPU was meanwhile. Several
processes share a GPU well only through NVIDIA's multi-process service: start `nvidia-cuda-mps-control -d` before.
--keep leaves the results there, a folder for each command. --quick runs small settings on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from flare.atomic import write_whole
from flare.experiments import EXPERIMENTS

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
_LOOK_EVERY_S, _ASK_GPU_EVERY_MS = 0.1, 500
_LATER = ("uplink", "systems-mnist", "systems-cifar10")
"""Experiments that came after the goals were set."""


@dataclass(frozen=True)
class Command:
    """What is timed; a goal in seconds, where there is one."""

    name: str
    experiments: tuple[str, ...]
    seeds: int
    goal_s: float | None = None
    quick: bool = False

    @property
    def typed(self) -> str:
        """As a user types it."""
        return f"flare reproduce {' '.join(self.experiments)} --seeds {self.seeds}" + " --quick" * self.quick


COMMANDS = (
    Command("fig5", ("fig5",), 8, 45.0),
    Command("all", tuple(name for name in EXPERIMENTS if name not in _LATER), 5, 360.0),
    *(Command(name, (name,), 5) for name in _LATER),
)
QUICK = (Command("quick", ("fig3",), 2, quick=True),)


@dataclass
class Gpu:
    """What a GPU said of itself every half second: when, how busy it was (%), what it drew (W), memory in use (MiB)."""

    told: list[tuple[float, float, float, float]] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Means and the most of its memory, of a stretch of time; nothing where it said nothing."""
        rows = [row[1:] for row in self.told if begin_s <= row[0] <= end_s]
        if not rows:
            return {}
        busy, watt, memory = zip(*rows, strict=True)
        return {"gpu_busy": statistics.mean(busy) / 100, "gpu_w": statistics.mean(watt), "gpu_mib": max(memory)}


@contextmanager
def asked_gpu() -> Iterator[Gpu]:
    """The GPU, asked again and again; nothing is learned where there is none."""
    gpu, program = Gpu(), shutil.which("nvidia-smi")
    if program is None:
        yield gpu
        return
    fields = "--query-gpu=utilization.gpu,power.draw,memory.used"
    command = [program, "-i", "0", fields, "--format=csv,noheader,nounits", f"--loop-ms={_ASK_GPU_EVERY_MS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as asking:
        reader = threading.Thread(target=_read, args=(asking, gpu))
        reader.start()
        try:
            yield gpu
        finally:
            asking.terminate()
            reader.join()


def _read(asking: subprocess.Popen[str], gpu: Gpu) -> None:
    assert asking.stdout is not None
    for line in asking.stdout:
        try:
            busy, watt, memory = (float(each) for each in line.split(","))
        except ValueError:  # "[N/A]", where a GPU does not tell
            continue
        gpu.told.append((time.time(), busy, watt, memory))


def timed(
    command: Command, out: Path, kernels: Path, processes: int | None, limit_s: float | None = None
) -> dict[str, Any]:
    """Carry a command out, into an empty folder; RuntimeError where it fails, or takes longer than it may."""
    had_kernels = kernels.exists() if torch.cuda.is_available() else None
    typed = [sys.executable, "-m", *command.typed.split(), "--quiet", "--out", str(out)]
    typed += [] if processes is None else ["--processes", str(processes)]
    first_s = None
    with asked_gpu() as gpu, tempfile.TemporaryFile() as said:
        begin_s = time.time()
        environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
        with _ended_with_us(typed, said, environment) as running:
            while running.poll() is None:
                if first_s is None and any(_rounds(out)):
                    first_s = time.time()
                if limit_s is not None and time.time() - begin_s > limit_s:
                    raise RuntimeError(f"{command.typed} was given up after {limit_s:g} s")
                time.sleep(_LOOK_EVERY_S)
        end_s = time.time()
        said.seek(0)
        if running.returncode:
            raise RuntimeError(f"{command.typed} ended with {running.returncode}: {said.read().decode()[-2000:]}")
    last_s = max((path.stat().st_mtime for path in _rounds(out)), default=end_s)
    first_s = last_s if first_s is None else min(first_s, last_s)
    return {
        **asdict(command),
        "typed": command.typed,
        "processes": processes,
        "runs": len(list((out / "trials").iterdir())),
        "seconds": end_s - begin_s,
        "until_first_round_s": first_s - begin_s,
        "rounds_s": max(0.0, last_s - first_s),
        "after_last_round_s": end_s - last_s,
        "had_kernels": had_kernels,
        **gpu.between(first_s, last_s),
    }


@contextmanager
def _ended_with_us(
    typed: Sequence[str], said: IO[bytes], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A command, with all processes that it has started; none of them is left, whatever ends this."""
    with subprocess.Popen(typed, stdout=said, stderr=subprocess.STDOUT, env=environment, start_new_session=True) as it:
        try:
            yield it
        finally:
            if it.poll() is None:
                os.killpg(it.pid, signal.SIGKILL)


def _rounds(out: Path) -> Iterator[Path]:
    """The records of runs that have done a round: before that they are empty."""
    return (path for path in (out / "trials").glob("*/rounds.jsonl") if path.stat().st_size > 0)


def report(results: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Reproducing the paper: measured",
        "",
        "The numbers are in `reproduction.json`; `benchmarks/reproduction.py` measures them, and rows that say so were "
        "timed by hand. Each line is one command that began with no runs, timed as a whole: starting, data, rounds, "
        "judging and drawing; “compiled” means that there were no kernels from before, either. Several processes share "
        "a GPU through NVIDIA's multi-process service (`nvidia-cuda-mps-control -d`); without it their kernels take "
        "turns.",
        "",
        "| command | machine | runs | seconds | goal | reached | until the first round | rounds | after the last | "
        "GPU busy meanwhile | kernels |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    machines = list(dict.fromkeys(row["machine"] for row in results["rows"]))
    for row in results["rows"]:
        goal, busy = row["goal_s"], row.get("gpu_busy")
        cells = [
            f"`{row['typed']}`",
            str(1 + machines.index(row["machine"])),
            f"{row['runs']:,}",
            f"{row['seconds']:.1f}" + ", by hand" * row.get("by_hand", False),
            "-" if goal is None else f"{goal:g}",
            "-" if goal is None else "yes" if row["seconds"] <= goal else "no",
            *(_seconds(row.get(name)) for name in ("until_first_round_s", "rounds_s", "after_last_round_s")),
            "-" if busy is None else f"{100 * busy:.0f} %",
            {True: "kept", False: "compiled", None: "-"}[row["had_kernels"]],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- Machine {number}: {name}" for number, name in enumerate(machines, start=1)), ""]
    return "\n".join([*lines, *(line + "\n" for line in results.get("notes", []))])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def with_row(results: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The results with a row in the place of that of the same command, or at the end."""
    rows = [row if each["typed"] == row["typed"] else each for each in results["rows"]]
    return results | {"rows": rows if row in rows else [*rows, row]}


def machine() -> str:
    """This one, in words."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    cores = os.cpu_count()
    return f"{name}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write reproduction.json and reproduction.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small settings on a CPU, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    names = [command.name for command in COMMANDS]
    parser.add_argument("--only", nargs="+", choices=names, default=["fig5", "all"], help="which commands")
    parser.add_argument("--processes", type=int, help="how many share the work; otherwise flare decides")
    parser.add_argument("--keep", type=Path, help="where results are left, a folder for each command")
    parser.add_argument("--limit", type=float, help="seconds after which a command is given up")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # as by `timeout`: nothing is left running then
    commands = QUICK if options.quick else [each for each in COMMANDS if each.name in options.only]
    path = options.out / "reproduction.json"
    results = json.loads(path.read_text()) if path.exists() else {"rows": []}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) if options.keep is None else options.keep
        for command in commands:
            if (kept / command.name).exists():
                parser.error(f"{kept / command.name} exists, and a command begins with nothing; move it away")
        for command in commands:
            row = timed(command, kept / command.name, Path(folder, "kernels"), options.processes, options.limit)
            results = with_row(results, row | {"machine": machine()})
            write_whole(path, (json.dumps(results, indent=1) + "\n").encode())
            write_whole(options.out / "reproduction.md", report(results).encode())
            print(f"{row['typed']}: {row['seconds']:.1f} s", flush=True)
    print(report(results))


if __name__ == "__main__":
    main()
