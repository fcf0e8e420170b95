"""`flare` and `python -m flare`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; a user sees one clear error, never a traceback (set FLARE_DEBUG=1 to see it)."""
    try:
        import click

        from flare.cli import app
    except ImportError as error:
        sys.exit(f"error: {error}: the command line needs typer and rich; install them, or import flare as a library")
    import typer

    try:
        code = typer.main.get_command(app).main(prog_name="flare", standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except (ValueError, OSError) as error:
        if os.environ.get("FLARE_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except Exception as error:
        if os.environ.get("FLARE_DEBUG"):
            raise
        print(f"error: unexpected {type(error).__name__}: {error} (a fault of flare's; please report it)", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
