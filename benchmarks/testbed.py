"""The numbers of docs/testbed.md: bring the testbed up, measure, and write them into the page.

    python benchmarks/testbed.py

needs Linux and the rights of root, a machine that does nothing else, and about 40 minutes. What has been measured stays
in out/testbed, and is not measured again when the program was interrupted.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flare.atomic import write_whole
from flare.testbed.page import as_markdown, write_results
from flare.testbed.run import FACTS, Results, read_testbed, run_testbed
from flare.testbed.settings import Settings
from flare.testbed.summary import Summary
from flare.units import human

ROOT = Path(__file__).resolve().parents[1]
MAIN = "main"
_SHORT: dict[str, Any] = {"policies": ("cm",), "rounds": 2, "devices": 3, "calibration_rounds": 0}
PARTS = {
    MAIN: Settings(),
    "without TLS": Settings(**_SHORT, tls=False),
    "updates of 1 Mbit": Settings(**_SHORT, update_bits=1e6),
    "updates of 10 Mbit": Settings(**_SHORT, update_bits=1e7, changed=("wireless.deadline_s=40",)),
}
"""The comparison, and short runs that differ from it in one thing."""
BEGIN, END = "<!-- measured: benchmarks/testbed.py writes what follows -->", "<!-- end of what was measured -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "testbed", help="where measurements are kept")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "testbed.md", help="the page to write into")
    given = parser.parse_args()
    found: dict[str, tuple[Summary, dict[str, Any]]] = {}
    for name, settings in PARTS.items():
        folder = given.out / name.replace(" ", "-")
        results = measured(settings, folder)
        facts = json.loads((folder / FACTS).read_text())
        found[name] = (write_results(results.delivered, results.compared, folder), facts)
    kept = given.page.with_suffix("")
    kept.mkdir(exist_ok=True)
    for file in ("measurements.csv", "scatter.svg"):
        shutil.copyfile(given.out / MAIN / file, kept / file)
    write_whole(given.page, with_results(given.page.read_text(), as_text(found)).encode())


def measured(settings: Settings, folder: Path) -> Results:
    """What was measured with these settings; a run that was interrupted begins anew."""
    if (folder / FACTS).exists():
        return read_testbed(folder)
    if folder.exists():
        shutil.rmtree(folder)
    return run_testbed(settings, folder, print)


def with_results(page: str, text: str) -> str:
    """The page with other results."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no place for results: write the lines {BEGIN} and {END} into it")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def as_text(found: Mapping[str, tuple[Summary, Mapping[str, Any]]]) -> str:
    """The results in tables."""
    summary, facts = found[MAIN]
    return f"{conditions(facts)}\n\n{as_markdown(summary)}\n{variants(found)}"


def conditions(facts: Mapping[str, Any]) -> str:
    """Where, when and how it was measured."""
    changed = f" Settings changed: {', '.join(facts['changed'])}." if facts["changed"] else ""
    busy = " The machine was busy with other work, which lengthens delivery, hand-over and fetch."
    changed += busy if facts["load_before"] > 0.5 * facts["cores"] else ""
    return (
        f"Measured on {facts['began']}: {facts['devices']} devices, {facts['rounds']} rounds of each policy, updates "
        f"of {human(facts['update_bits'], 'bit')}, {'with' if facts['tls'] else 'without'} TLS, guard {facts['guard']} "
        f"({facts['guard_factor']} times the longest overhead in {facts['calibration_rounds']} rounds of calibration); "
        f"{facts['took_s'] / 60:.0f} minutes on {facts['cores']} cores whose load average had been "
        f"{facts['load_before']:.1f}; {facts['system']}, Flower {facts['flower']}.{changed}"
    )


def variants(found: Mapping[str, tuple[Summary, Mapping[str, Any]]]) -> str:
    """What TLS and the size of an update change, a row for each part."""
    names = list(found[MAIN][0].update_bytes)
    head = [
        "",
        "devices, load before",
        *(f"{name}, bytes" for name in names),
        "upload: median error",
        "less the protocols' bytes",
    ]
    lines = [head, ["---"] * len(head)]
    for name, (summary, facts) in found.items():
        error, net = summary.errors["upload"].median, summary.errors["upload, less the protocols' bytes"].median
        sizes = [f"{summary.update_bytes[each]:,.0f}" for each in names]
        on = f"{facts['devices']}, {facts['load_before']:.1f}"
        lines.append([name, on, *sizes, f"{100.0 * error:.1f} %", f"{100.0 * net:.1f} %"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
