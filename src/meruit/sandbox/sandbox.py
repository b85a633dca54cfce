"""`Sandbox`: runs metric code on work and returns numbers or one named failure; user code never raises here."""

import asyncio
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from meruit.errors import Failure, MeruitError, SandboxError
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
from meruit.sandbox.contract import Limits, SandboxResult, build_evidence, encode_context
from meruit.sandbox.pool import Metrics, Pool, Worker, acquire_pool, release_pool
from meruit.suggestions import nearest

MOST_WORKERS = 64
SMALL_BYTES = 4 * 1024
"""Work up to this size is handed to an expression on the event loop."""
NO_CONTEXT = b""
"""Sent instead of a context, it asks a worker only to load the code."""


class Sandbox:
    """Runs metric code confined by its tier, within time and memory limits.

    Cheap to make: workers are shared by all sandboxes of a kind in this process, start with the first call and stay
    warm until the last such sandbox is closed or collected. Safe to use from many threads, tasks and event loops.
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
        # A sandbox that is never closed releases its workers when it is garbage-collected.
        self._release = weakref.finalize(self, release_pool, self._key, id(self))

    @property
    def engine(self) -> str:
        """Name and version of the engine that runs the code."""
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
        """Run the code on one piece of work; returns `{"metrics": {name: number}}`, or a result with a `failure`.

        Raises MeruitError only for mistakes of the caller: a context that is not JSON, a limit out of range.
        """
        encoded = encode_context(context)
        if self.tier is Tier.EXPR and len(encoded) > SMALL_BYTES:
            # In a thread: it may be evaluated at once, and criteria may have a hundred expressions.
            evidence, running = await asyncio.to_thread(self._begin, code, encoded, timeout_ms)
        else:
            evidence, running = self._begin(code, encoded, timeout_ms)
        try:
            metrics = running.result() if running.done() else await asyncio.wrap_future(running)
        except SandboxError as failed:
            return SandboxResult(None, evidence, failed.failure, str(failed))
        return SandboxResult(metrics, evidence)

    def execute_sync(
        self, code: str, context: Mapping[str, Any], timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> SandboxResult:
        """The same for callers without an event loop."""
        return self._execute(code, encode_context(context), timeout_ms)

    def load_sync(self, code: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> SandboxResult:
        """Load the code without judging anything: what its author can know before any work exists.

        Returns an empty `{"metrics": {}}`, or a result with a `failure`: a syntax error, a construct that the tier
        lacks, top-level code that fails, no function `metric(input, output, metadata)`.
        """
        return self._execute(code, NO_CONTEXT, timeout_ms)

    def _execute(self, code: str, context: bytes, timeout_ms: int) -> SandboxResult:
        limits = self._limit(code, timeout_ms)
        evidence = build_evidence(code, self.tier, self.engine, limits)
        try:
            metrics = self._evaluate(code, context)
            if metrics is None:
                metrics = self._ready_pool().call(code, context, limits.timeout_ms)
        except SandboxError as failed:
            return SandboxResult(None, evidence, failed.failure, str(failed))
        return SandboxResult(metrics, evidence)

    def close(self) -> None:
        """Release the workers; they are killed when the last sandbox that uses them is closed."""
        if self._release.detach() is not None:
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

    def _limit(self, code: str, timeout_ms: int) -> Limits:
        """The limits of a call; raises MeruitError for mistakes of the caller."""
        if not isinstance(code, str):
            raise MeruitError(f"code is {type(code).__name__}; it must be text")
        return Limits(_within("timeout_ms", timeout_ms, 1, MAX_TIMEOUT_MS), self.memory_limit_mb)

    def _begin(self, code: str, context: bytes, timeout_ms: int) -> tuple[dict[str, Any], "Future[Metrics]"]:
        """Start a call; returns its evidence and its future."""
        limits = self._limit(code, timeout_ms)
        try:
            return build_evidence(code, self.tier, self.engine, limits), self._start(code, context, limits.timeout_ms)
        except SandboxError as failed:
            ended: Future[Metrics] = Future()
            # Without the traceback, whose frames would keep the work alive.
            ended.set_exception(failed.with_traceback(None))
            return build_evidence(code, self.tier, self.engine, limits), ended

    def _require_open(self) -> None:
        if not self._release.alive:
            release_pool(self._key, id(self))
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "the sandbox is closed")

    def _start(self, code: str, context: bytes, timeout_ms: int) -> "Future[Metrics]":
        metrics = self._evaluate(code, context)
        if metrics is not None:
            ended: Future[Metrics] = Future()
            ended.set_result(metrics)
            return ended
        return self._ready_pool().submit(code, context, timeout_ms)

    def _evaluate(self, code: str, context: bytes) -> Metrics | None:
        """Admit the code, and evaluate a cheap expression at once; None where a worker must run it."""
        self._require_open()
        _admit(code)
        if self.tier is not Tier.EXPR:
            return None
        expression.admit(code)
        # Compiling an expression is cheap; only evaluating one may not be.
        cheap = context == NO_CONTEXT or expression.is_cheap(code, context)
        return expression.evaluate(code, context) if cheap else None

    def _ready_pool(self) -> Pool:
        """The workers of this kind in this process."""
        if self._pool is None or self._pool.process_id != os.getpid():
            tier, memory_limit_mb, size = self._key
            # The lambda must not refer to this sandbox, or the pool would keep it alive for ever.
            self._pool = acquire_pool(
                self._key, id(self), lambda: Pool(partial(_new_worker, tier, memory_limit_mb), size)
            )
            # Another thread may have closed the sandbox before it could see the pool.
            self._require_open()
        return self._pool


def _new_worker(tier: Tier, memory_limit_mb: int) -> Worker:
    match tier:
        case Tier.EXPR:
            return jail.Jail(memory_limit_mb, jail.EXPRESSION)
        case Tier.PYTHON:
            return interpreter.Interpreter(memory_limit_mb)
        case Tier.PYTHON_FULL:
            return jail.FullPython(memory_limit_mb)


def _admit(code: str) -> None:
    """Refuse code that is too large or not valid Unicode, for every tier."""
    try:
        size = len(code) if code.isascii() else len(code.encode())
    except UnicodeEncodeError:
        raise SandboxError(
            Failure.UNSUPPORTED_CONSTRUCT, "the code is not valid Unicode: it has a lone surrogate"
        ) from None
    if size > MAX_CODE_BYTES:
        message = f"the code is {size:,} bytes; at most {MAX_CODE_BYTES // 1024} KiB are allowed"
        raise SandboxError(Failure.UNSUPPORTED_CONSTRUCT, message)


def _tier(tier: Tier | str) -> Tier:
    try:
        return Tier(tier)
    except ValueError:
        known = ", ".join(Tier)
        close = nearest(str(tier), map(str, Tier))
        raise MeruitError(f"tier {tier!r} does not exist{close}; use one of {known}") from None


def _within(name: str, value: int, low: int, high: int) -> int:
    # Exactly int: True would count as 1.
    if type(value) is not int or not low <= value <= high:
        raise MeruitError(f"{name} is {value!r}; it must be a whole number from {low:,} to {high:,}")
    return value
