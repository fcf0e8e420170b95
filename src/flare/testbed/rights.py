"""What the testbed needs of the machine, and what of it is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path

from flare.commands import IPROUTE2, run_command
from flare.extras import how_to_install
from flare.testbed import network

NEEDS = (
    "it needs Linux with network namespaces, veth and tc tbf, the programs ip and tc (iproute2) and openssl, the "
    "rights of root (CAP_NET_ADMIN and CAP_SYS_ADMIN), and Flower (the extra flower)"
)


def program(name: str) -> str | None:
    """The path of a program: beside this Python, as in a virtual environment, or elsewhere; None: it is not here."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def missing() -> str | None:
    """What stands in the way of a testbed on this machine, in words; None: nothing does."""
    if not sys.platform.startswith("linux"):
        return f"this system is {sys.platform}; {NEEDS}"
    for name in ("ip", "tc", "openssl"):
        if shutil.which(name) is None:
            return f"the program {name} is not here; {NEEDS}"
    if importlib.util.find_spec("flwr") is None:
        return f"Flower is not installed ({how_to_install('flower')}); {NEEDS}"
    for name in ("flower-superlink", "flower-supernode", "flwr"):
        if program(name) is None:
            return f"Flower's program {name} is not here; {NEEDS}"
    return _refused()


def _refused() -> str | None:
    """What the system says to a namespace with a shaped link, which is removed at once."""
    what = "network namespaces"
    try:
        network.add(network.PROBE)
        what = "virtual links"
        network.ip("-n", network.PROBE, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
        what = "shaped links (tc tbf)"
        words = ["qdisc", "add", "dev", "probe0", "root", "tbf", "rate", "1mbit", "burst", "3kb", "latency", "1s"]
        run_command(["tc", "-n", network.PROBE, *words], needs=IPROUTE2, timeout_s=network.TIMEOUT_S)
    except OSError as error:
        return f"this machine does not allow {what} ({error}); {NEEDS}"
    finally:
        with contextlib.suppress(OSError):  # it may not be there
            network.delete(network.PROBE)
    return None


def refuse() -> None:
    """ValueError where the testbed cannot be set up here, with what it needs."""
    if (what := missing()) is not None:
        raise ValueError(f"the testbed cannot be set up: {what}")
