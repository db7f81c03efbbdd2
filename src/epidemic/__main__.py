"""The console script and `python -m epidemic`.

Nothing is imported at the top but what Python has loaded already, so that Ctrl-C during an import is handled from the start.
"""

import os
import signal
import sys
from typing import Any

INTERRUPTED = 130


def entry() -> None:
    """Run the command line and exit with its code; interrupted, with one line and 130."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it to be ignored
            signal.signal(signal.SIGINT, _interrupt)
        from epidemic.cli.app import entry as run

        run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _interrupt(number: int, frame: Any) -> None:
    """Handle Ctrl-C: raise KeyboardInterrupt, or exit at once during an import.

    Modules with C++ code do not survive an exception while they are imported: PyTorch may abort the process.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            try:
                # on a terminal: clear the line of a progress bar and show the cursor that it hides
                os.write(2, b"\r\x1b[K\x1b[?25h" * os.isatty(2) + b"error: interrupted\n")
            finally:
                os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    entry()
