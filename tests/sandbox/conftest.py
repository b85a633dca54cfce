"""One box of each tier for all tests of a process: workers are dear, and sharing them is what they are for."""

from collections.abc import Callable, Iterator

import pytest

from meruit.errors import Failure
from meruit.model.kinds import Tier
from meruit.sandbox.sandbox import Sandbox

Write = Callable[..., str]
NOTHING = "def metric(input, output, metadata):\n    return {}\n"


@pytest.fixture(scope="session")
def metric() -> Write:
    """Metric code around the lines of its function."""

    def written(*lines: str) -> str:
        return "\n    ".join(("def metric(input, output, metadata):", *lines)) + "\n"

    return written


def _opened(tier: Tier) -> Iterator[Sandbox]:
    with Sandbox(tier) as box:
        tried = box.execute_sync("size([1].map(x, x))" if tier is Tier.EXPR else NOTHING, {}, 60_000)
        if tried.failure is Failure.SANDBOX_UNAVAILABLE:
            pytest.skip(f"no {tier} on this machine: {tried.message}")
        yield box


@pytest.fixture(scope="session")
def expr() -> Iterator[Sandbox]:
    """Expressions, with a jail behind them."""
    yield from _opened(Tier.EXPR)


@pytest.fixture(scope="session")
def small() -> Iterator[Sandbox]:
    """The small Python."""
    yield from _opened(Tier.PYTHON)


@pytest.fixture(scope="session")
def full() -> Iterator[Sandbox]:
    """CPython in a jail."""
    yield from _opened(Tier.PYTHON_FULL)
