"""`flare` and `python -m flare`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from flare.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; the command line needs it: install it, or use flare as a library")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    app(prog_name="flare")


if __name__ == "__main__":
    main()
