"""The process that runs the command line: `meruit`, or `python -m meruit`."""

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 250_000
"""How many new objects make the garbage collector look: modules make many, and none of them is garbage."""


def run() -> NoReturn:
    """Run the command line; Ctrl-C ends the process with exit code 130, without a message, while imports run too."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    try:
        from meruit.cli import main

        main()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            _end_interrupted()
        if isinstance(ending.code, int) and threading.active_count() == 1:
            _end_at_once(ending.code)
        raise


def _end_at_once(code: int) -> None:
    """Clean up and leave: to free each object first takes the interpreter a tenth of the time of a verification.

    Returns where the output cannot be written, so that the interpreter reports it as usual.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit does not run them
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def _end_interrupted() -> NoReturn:
    """Clean up and leave, without the interpreter's shutdown.

    The shutdown puts SIGINT back to its default: a second Ctrl-C would then kill the process with another exit code.
    """
    with suppress(ValueError):  # Only the main thread may set a handler.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit does not run them, and the sandbox removes its folders there
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # A stream may be closed, broken or None.
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
