"""`flare` and `python -m flare`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from flare.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; the command line needs it: install it, or use flare as a library")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
