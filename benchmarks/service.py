"""How many rounds a second the service schedules, beside a bare FastAPI application that sends the same body back.

    python benchmarks/service.py [--quick] [--out DIR]

writes docs/benchmarks/service.md and .json. Both are served by as many processes, asked over as many connections from
this process, in turn, on the same machine: read the ratio, and what a request takes of the processor. Requests a second
depend on the machine, and on what else it does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import Body, FastAPI

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flare import CELLS, Cell  # noqa: E402

OUT = ROOT / "docs" / "benchmarks"
WANTED_PER_S = 300
"""Rounds of 40 devices a second that two cores are to schedule."""
SERVICE = "service, 40 devices"
WORKERS = 2
CONNECTIONS = 8
COLUMNS = ("tau", "compute_s", "snr_hz")


def echo_app() -> FastAPI:
    """What FastAPI takes for reading a body and sending it back."""
    app = FastAPI()

    @app.post("/echo")
    async def echo(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008 (FastAPI's way)
        return body

    return app


def body_of(num_devices: int, policy: str = "exact") -> bytes:
    """A round of the paper's cell as the service takes it."""
    drawn = Cell(CELLS["paper"], 3).draw(0)
    devices = [{name: float(getattr(drawn, name)[at % 40]) for name in COLUMNS} for at in range(num_devices)]
    round_ = {"bandwidth_hz": 1e7 * num_devices / 40, "deadline_s": 1.0, "payload_bits": 1e7, "gamma": 10.0}
    return json.dumps({"devices": devices, **round_, "policy": policy}).encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(command: list[str], port: int) -> Iterator[int]:
    """A server as a process; yields its process id."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])}
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        time.sleep(2.0)  # until every worker has begun
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def processor_s(pid: int) -> float:
    """Processor time that a process and its children have taken so far."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(entry.name) == pid or int(fields[1]) == pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def _ask(port: int, path: str, body: bytes, end_s: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}")
    request = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body
    while time.perf_counter() < end_s:
        start = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer[:20], answer
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        took.append(time.perf_counter() - start)
    writer.close()


async def _all(port: int, path: str, body: bytes, seconds: float, connections: int) -> list[float]:
    took: list[float] = []
    end_s = time.perf_counter() + seconds
    await asyncio.gather(*(_ask(port, path, body, end_s, took) for _ in range(connections)))
    return took


def measured(port: int, pid: int, path: str, body: bytes, seconds: float) -> dict[str, float]:
    """Requests a second over `CONNECTIONS` connections, how long one takes, and processor time of the servers."""
    asyncio.run(_all(port, path, body, 0.5, CONNECTIONS))
    before_s, start = processor_s(pid), time.perf_counter()
    took = asyncio.run(_all(port, path, body, seconds, CONNECTIONS))
    elapsed_s, worked_s = time.perf_counter() - start, processor_s(pid) - before_s
    return {
        "per_s": len(took) / elapsed_s,
        "median_ms": 1e3 * statistics.median(took),
        "worst_of_100_ms": 1e3 * sorted(took)[int(0.99 * len(took))],
        "processor_ms": 1e3 * worked_s / len(took),
    }


def in_turn(rows: dict[str, tuple[int, int, str, bytes]], seconds: float, turns: int) -> dict[str, dict[str, float]]:
    """The median of what each is measured at, turn by turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    for _ in range(turns):
        for name, (port, pid, path, body) in rows.items():
            found[name].append(measured(port, pid, path, body, seconds))
    return {name: {key: statistics.median(one[key] for one in each) for key in each[0]} for name, each in found.items()}


def page(results: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {name} | {row['per_s']:,.0f} | {row['median_ms']:.1f} ms | {row['worst_of_100_ms']:.1f} ms | "
        f"{row['processor_ms']:.2f} ms |"
        for name, row in results["rows"].items()
    )
    load = results["load"]
    busy = f"other programs kept the machine busy meanwhile (load {load:.0f} on {os.cpu_count()} cores)"
    return f"""# The scheduler as a service: measured

Made by `benchmarks/service.py`. Machine: {results["machine"]};
{busy if load > 4 else "nothing else ran beside it"}.
{WORKERS} processes answer, {CONNECTIONS} connections ask; all of it, the one that asks too, shares the cores.

| | requests a second | a request | worst of 100 | processor of the servers |
| --- | ---: | ---: | ---: | ---: |
{rows}

The service reads 40 devices, proves the optimum, explains every device and writes the answer; the echo reads the same
body and sends it back, as a FastAPI application of five lines does. The service answers **{results["ratio"]:.2f}**
of the requests that the echo does.

What it is built for: {WANTED_PER_S} rounds of 40 devices a second on two cores. Measured:
**{results["rows"][SERVICE]["per_s"]:,.0f}**. By the processor time that a round takes, two cores that do nothing else
could answer **{results["by_processor"]:,.0f}** a second.
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a second instead of a minute")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    seconds, turns = (0.5, 1) if given.quick else (4.0, 5)
    ours, peer = free_port(), free_port()
    serve = ["-m", "flare", "serve", "--port", str(ours), "--workers", str(WORKERS)]
    echo = ["-m", "uvicorn", "service:echo_app", "--factory", "--port", str(peer), "--workers", str(WORKERS)]
    with serving(serve, ours) as pid, serving([*echo, "--log-level", "warning", "--no-access-log"], peer) as other:
        rows = {
            SERVICE: (ours, pid, "/api/schedule", body_of(40)),
            "bare FastAPI echo of the same body": (peer, other, "/echo", body_of(40)),
            "service, 1,000 devices": (ours, pid, "/api/schedule", body_of(1000)),
        }
        found = in_turn(rows, seconds, turns)
    first, second = found[SERVICE], found["bare FastAPI echo of the same body"]
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "rows": found,
        "ratio": first["per_s"] / second["per_s"],
        "by_processor": 2 * 1e3 / first["processor_ms"],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "service.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "service.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
