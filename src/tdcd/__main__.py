"""``python -m tdcd`` and ``tdcd``: how the command starts.

A signal may come before anything is imported that could handle it, so this file imports nothing else before it is ready
for one: a command that is stopped exits with 130, whenever that happens.
"""

import signal
import sys


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from tdcd.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
