"""The box: code and work go in, numbers or one named failure come out. What the code does never raises here."""

import asyncio
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from meruit.errors import MeruitError, nearest
from meruit.model.kinds import Tier
from meruit.model.limits import (
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_MS,
    MAX_CODE_BYTES,
    MAX_MEMORY_MB,
    MAX_TIMEOUT_MS,
    MIN_MEMORY_MB,
)
from meruit.sandbox import expression, interpreter, jail
from meruit.sandbox.contract import (
    Failure,
    Limits,
    SandboxError,
    SandboxResult,
    build_evidence,
    encode_context,
)
from meruit.sandbox.pool import Metrics, Pool, Worker, acquire_pool, release_pool

MOST_WORKERS = 64


class Sandbox:
    """Runs metric code behind the walls of its tier, within its limits.

    Cheap to make: workers are shared by all sandboxes of a kind in this process, start with the first call and stay
    warm until the last such sandbox is closed or forgotten. Safe to use from many threads, tasks and event loops.
    """

    def __init__(
        self,
        tier: Tier | str = Tier.PYTHON,
        memory_limit_mb: int = DEFAULT_MEMORY_MB,
        *,
        max_workers: int | None = None,
    ) -> None:
        self.tier = _tier(tier)
        self.memory_limit_mb = _within("memory_limit_mb", memory_limit_mb, MIN_MEMORY_MB, MAX_MEMORY_MB)
        workers = max(2, min(os.cpu_count() or 2, 8)) if max_workers is None else max_workers
        self._key = (self.tier, self.memory_limit_mb, _within("max_workers", workers, 1, MOST_WORKERS))
        self._pool: Pool | None = None
        # Whoever forgets to close a sandbox still leaves no process behind once it is collected.
        self._letting_go = weakref.finalize(self, release_pool, self._key, id(self))

    @property
    def engine(self) -> str:
        """What runs the code, and its version."""
        match self.tier:
            case Tier.EXPR:
                return expression.engine()
            case Tier.PYTHON:
                return interpreter.engine()
            case Tier.PYTHON_FULL:
                return jail.engine()

    async def execute(
        self, code: str, context: Mapping[str, Any], timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> SandboxResult:
        """Run the code on one piece of work: `{"metrics": {name: number}}`, or a result whose `failure` is named.

        Raises MeruitError only for what the caller did: a context that is no JSON, a limit out of range.
        """
        evidence, running = self._begin(code, context, timeout_ms)
        try:
            metrics = running.result() if running.done() else await asyncio.wrap_future(running)
        except SandboxError as failed:
            return SandboxResult(None, evidence, failed.failure, str(failed))
        return SandboxResult(metrics, evidence)

    def execute_sync(
        self, code: str, context: Mapping[str, Any], timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> SandboxResult:
        """The same for callers without an event loop."""
        evidence, running = self._begin(code, context, timeout_ms)
        try:
            return SandboxResult(running.result(), evidence)
        except SandboxError as failed:
            return SandboxResult(None, evidence, failed.failure, str(failed))

    def close(self) -> None:
        """Let go of the workers; they end with the last sandbox that uses them, whatever they are doing."""
        if self._letting_go.detach() is not None:
            release_pool(self._key, id(self), wait=True)
        self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _begin(
        self, code: str, context: Mapping[str, Any], timeout_ms: int
    ) -> tuple[dict[str, Any], "Future[Metrics]"]:
        """What is known of the call at once, and the call itself."""
        if not isinstance(code, str):
            raise MeruitError(f"code is {type(code).__name__}; it must be text")
        limits = Limits(_within("timeout_ms", timeout_ms, 1, MAX_TIMEOUT_MS), self.memory_limit_mb)
        crossing = encode_context(context)
        try:
            return build_evidence(code, self.tier, self.engine, limits), self._start(code, crossing, limits.timeout_ms)
        except SandboxError as failed:
            ended: Future[Metrics] = Future()
            # Without its frames, which hold the work.
            ended.set_exception(failed.with_traceback(None))
            return build_evidence(code, self.tier, self.engine, limits), ended

    def _require_open(self) -> None:
        if not self._letting_go.alive:
            release_pool(self._key, id(self))
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "the sandbox is closed")

    def _start(self, code: str, crossing: bytes, timeout_ms: int) -> "Future[Metrics]":
        self._require_open()
        _admit(code)
        if self.tier is Tier.EXPR:
            expression.admit(code)
        if self.tier is Tier.EXPR and expression.is_cheap(code, crossing):
            ended: Future[Metrics] = Future()
            ended.set_result(expression.evaluate(code, crossing))
            return ended
        if self._pool is None or self._pool.process_id != os.getpid():
            tier, memory_limit_mb, size = self._key
            # Nothing of this sandbox: a pool that held on to it would outlive it for ever.
            self._pool = acquire_pool(
                self._key, id(self), lambda: Pool(partial(_new_worker, tier, memory_limit_mb), size)
            )
            # It may have been closed in this very moment, by somebody who could not know of the pool.
            self._require_open()
        return self._pool.submit(code, crossing, timeout_ms)


def _new_worker(tier: Tier, memory_limit_mb: int) -> Worker:
    match tier:
        case Tier.EXPR:
            return jail.Jail(memory_limit_mb, "expr")
        case Tier.PYTHON:
            return interpreter.Interpreter(memory_limit_mb)
        case Tier.PYTHON_FULL:
            return jail.Jail(memory_limit_mb)


def _admit(code: str) -> None:
    """Refuse what no tier should even look at."""
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        raise SandboxError(
            Failure.UNSUPPORTED_CONSTRUCT, "the code is not Unicode: it holds a lone surrogate"
        ) from None
    if size > MAX_CODE_BYTES:
        message = f"the code is {size:,} bytes; at most {MAX_CODE_BYTES // 1024} KiB are taken"
        raise SandboxError(Failure.UNSUPPORTED_CONSTRUCT, message)


def _tier(tier: Tier | str) -> Tier:
    try:
        return Tier(tier)
    except ValueError:
        known = ", ".join(Tier)
        raise MeruitError(f"no tier is named {tier!r}{nearest(str(tier), map(str, Tier))}; there are {known}") from None


def _within(name: str, value: int, low: int, high: int) -> int:
    # Exactly int: True would count as 1.
    if type(value) is not int or not low <= value <= high:
        raise MeruitError(f"{name} is {value!r}; it must be a whole number from {low:,} to {high:,}")
    return value
