"""Makes the jail's interpreter deterministic: fixed clock, fixed seeds, no environment, no output, no further imports.

This is not a security boundary. It makes honest code repeatable; the kernel's limits stop hostile code. Standard
library only.
"""

import datetime as dt
import io
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

FROZEN_S = 946_684_800
"""2000-01-01T00:00:00Z, the fixed time inside the jail."""
SEED = 0
"""The seed of all randomness inside the sandbox, hashing included."""


class NullTextStream(io.TextIOBase):
    """A stream that discards all text."""

    def write(self, text: str) -> int:
        """Discard the text."""
        return len(text)

    def writable(self) -> bool:
        """True, as `print` requires."""
        return True


def make_deterministic() -> None:
    """Fix clock, randomness, environment and imports of this interpreter; call it after all modules are loaded."""
    os.environ.clear()
    sys.argv[:] = ["metric"]
    sys.path.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), NullTextStream(), NullTextStream()
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
    _seed_randomness()
    _stop_clocks()
    _stop_dates()
    _fix_process_identity()


def _seed_randomness() -> None:
    """Give the fixed seed to generators that are made without one."""
    real = random.Random

    class Random(real):  # type: ignore[misc, valid-type]
        def __init__(self, x: Any = None) -> None:
            super().__init__(SEED if x is None else x)

        def seed(self, a: Any = None, version: int = 2) -> None:
            super().seed(SEED if a is None else a, version)

    Random.__module__, Random.__qualname__ = "random", "Random"
    random.Random = Random  # type: ignore[misc]
    shared, entropy = Random(), Random()
    for name in dir(random):
        method = getattr(random, name)
        # The module's functions are the methods of one hidden generator.
        if isinstance(getattr(method, "__self__", None), real):
            setattr(random, name, getattr(shared, name))

    def urandom(size: int, /) -> bytes:
        return bytes(entropy.randbytes(size))

    # `secrets`, and numpy's generators through it, ask here.
    os.urandom = random._urandom = urandom  # type: ignore[attr-defined]  # noqa: SLF001
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)


def _stop_clocks() -> None:
    moment = time.gmtime(FROZEN_S)

    def always(value: float) -> Callable[..., float]:
        return lambda *_given: value

    def with_default(real: Callable[..., Any], default: Any, position: int = 0) -> Callable[..., Any]:
        """For functions that look at the clock when their argument at that position is left out, or None."""
        return lambda *arguments: (
            real(*arguments) if arguments[position:] not in ((), (None,)) else real(*arguments[:position], default)
        )

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"):
        setattr(time, name, always(float(FROZEN_S)))
        setattr(time, f"{name}_ns", always(FROZEN_S * 10**9))
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, with_default(getattr(time, name), FROZEN_S))
    time.asctime = with_default(time.asctime, moment)
    time.strftime = with_default(time.strftime, moment, position=1)
    time.sleep = lambda _seconds, /: None


class _StandInMeta(type):
    """A stand-in for a class, which knows the instances and the heirs of what it stands for."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _real_type(cls)) if _real_type(cls) else super().__instancecheck__(one)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _real_type(cls)) if _real_type(cls) else super().__subclasscheck__(other)


_STAND_INS: dict[type, type] = {}


def _real_type(cls: type) -> Any:
    return _STAND_INS.get(cls)


def _stop_dates() -> None:
    class datetime(dt.datetime, metaclass=_StandInMeta):  # noqa: N801 - it stands in for the one of that name
        def __repr__(self) -> str:
            return _qualify_repr(self, super().__repr__())

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "datetime":
            return cls.fromtimestamp(FROZEN_S, tz) if tz else cls(2000, 1, 1)

        @classmethod
        def utcnow(cls) -> "datetime":
            return cls(2000, 1, 1)

        @classmethod
        def today(cls) -> "datetime":
            return cls(2000, 1, 1)

    class date(dt.date, metaclass=_StandInMeta):  # noqa: N801 - as above
        def __repr__(self) -> str:
            return _qualify_repr(self, super().__repr__())

        @classmethod
        def today(cls) -> "date":
            return cls(2000, 1, 1)

    for kind in (datetime, date):
        _STAND_INS[kind] = kind.__mro__[1]
        kind.__module__, kind.__qualname__ = "datetime", kind.__name__
        setattr(dt, kind.__name__, kind)


def _qualify_repr(one: object, shown: str) -> str:
    """As the real one shows itself, with its module."""
    return f"datetime.{shown}" if type(one) in _STAND_INS else shown


def _fix_process_identity() -> None:
    """No two processes or machines differ by these."""
    os.getpid = lambda: 1
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid.__dict__.update(_generate_time_safe=None, getnode=lambda: 1)
