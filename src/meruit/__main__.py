"""The process that runs the command line: `meruit`, or `python -m meruit`."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130


def run() -> NoReturn:
    """Run the command line; Ctrl-C ends the process with exit code 130, without a message, while imports run too."""
    try:
        from meruit.cli import main

        main()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as ending:
        if ending.code != INTERRUPTED:
            raise
        _end_interrupted()


def _end_interrupted() -> NoReturn:
    """Clean up and leave, without the interpreter's shutdown.

    The shutdown puts SIGINT back to its default: a second Ctrl-C would then kill the process with another exit code.
    """
    import atexit

    with suppress(ValueError):  # Only the main thread may set a handler.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit does not run them, and the sandbox removes its folders there
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # A stream may be closed, broken or None.
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
