"""Build the record of one call of a model from its response, its stream or its exception."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from meruit.model.metering import MAX_NAME, CallState, MeteredCall
from meruit.model.usage import Tokens
from meruit.usage.providers.support.usage_blocks import last_tokens_of

C = TypeVar("C")

_REFUSED, _UNSURE = range(400, 500), (408, 499)
"""HTTP statuses of calls that generated nothing; and statuses in this range that do not prove it."""
_MODEL, _ID, _TIER = ("model", "model_version", "modelVersion"), ("id", "response_id", "responseId"), ("service_tier",)
_INSIDE = ("message", "response", "usage")
"""Fields in which stream events and some responses hold the same values."""
_USAGE_FIELDS = ("usage", "usage_metadata", "usageMetadata", "message", "response")
"""Fields of a chunk that may hold token counts."""


class CallOverrides(msgspec.Struct, frozen=True):
    """Values from the caller that take precedence over the response."""

    model: str = ""
    call_id: str = ""
    tier: str = ""
    provider: str | None = None


def call_without_usage(at: datetime, state: CallState, known: CallOverrides = CallOverrides()) -> MeteredCall:  # noqa: B008 - frozen
    """Build a call whose tokens are unknown."""
    return _build_call(at, state, None, known, ())


def call_from_response(
    at: datetime, responses: Sequence[object], known: CallOverrides, state: CallState = CallState.OK
) -> MeteredCall:
    """Build a call from its response, its usage block or its stream chunks; raises AuthorError for other values.

    Each usage of a stream includes those before it, so the last one counts; of a stream that broke off, none does.
    """
    return _build_call(
        at, state, last_tokens_of(responses, known.provider) if state is CallState.OK else None, known, responses
    )


def state_of(error: BaseException, *, after_answers: bool) -> CallState | None:
    """How a call ended that raised this exception; None where the exception does not come from a call.

    A refused call generated nothing. For every other failed call, only the provider knows what it used. An exception
    that is not about a call comes from the step's own code, if the step had its responses by then.
    """
    status = _attribute(error, "status_code") or _attribute(_attribute(error, "response"), "status_code")
    if isinstance(status, int) and status in _REFUSED and status not in _UNSURE:
        return CallState.FAILED
    broken = isinstance(error, (TimeoutError, ConnectionError, asyncio.CancelledError, KeyboardInterrupt))
    if broken or isinstance(status, int) or _attribute(error, "request") is not None:
        return CallState.ABORTED
    return None if after_answers else CallState.ABORTED


class MeteredStream(Generic[C]):
    """Passes chunks through, with `for` or `async for`, and reports once how the stream ended."""

    def __init__(
        self, chunks: Iterable[C] | AsyncIterable[C], ended: Callable[["MeteredStream[C]", BaseException | None], None]
    ) -> None:
        self._chunks = chunks
        self._ended = ended
        self._iterator: Iterator[C] | None = None
        self._async_iterator: AsyncIterator[C] | None = None
        self.usage_chunks: list[C] = []
        """The chunks that may have usage; the others are not kept."""
        self.is_over = False
        self.is_complete = False
        """Whether the stream was read to its end."""

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        if self._iterator is None:
            if not isinstance(self._chunks, Iterable):
                raise TypeError("this stream is asynchronous; read it with `async for`")
            self._iterator = iter(self._chunks)
        try:
            chunk = next(self._iterator)
        except BaseException as stop:
            self.end(stop)
            raise
        return self._collect(chunk)

    def __aiter__(self) -> AsyncIterator[C]:
        return self

    async def __anext__(self) -> C:
        if self._async_iterator is None:
            if not isinstance(self._chunks, AsyncIterable):
                raise TypeError("this stream is not asynchronous; read it with `for`")
            self._async_iterator = aiter(self._chunks)
        try:
            chunk = await anext(self._async_iterator)
        except BaseException as stop:
            self.end(stop)
            raise
        return self._collect(chunk)

    def end(self, stop: BaseException | None = None) -> None:
        """End the stream: at its end, by an exception, or because reading stopped."""
        if not self.is_over:
            self.is_over, self.is_complete = True, isinstance(stop, (StopIteration, StopAsyncIteration))
            self._ended(self, None if self.is_complete else stop)

    def _collect(self, chunk: C) -> C:
        if not self.is_over and any(_attribute(chunk, name) is not None for name in _USAGE_FIELDS):
            self.usage_chunks.append(chunk)
        return chunk


def _build_call(
    at: datetime, state: CallState, tokens: Tokens | None, known: CallOverrides, responses: Sequence[object]
) -> MeteredCall:
    return MeteredCall(
        at=at,
        model=(known.model or _find_label(responses, _MODEL))[:MAX_NAME],
        tokens=tokens,
        state=state,
        id=(known.call_id or _find_label(responses, _ID))[:MAX_NAME],
        tier=(known.tier or _find_label(responses, _TIER))[:MAX_NAME],
    )


def _find_label(responses: Sequence[object], names: Sequence[str]) -> str:
    """Find the last text under one of the names."""
    for one in reversed(responses):
        for place in (one, *(_attribute(one, name) for name in _INSIDE)):
            for name in names:
                found = _attribute(place, name)
                if isinstance(found, str) and found:
                    return found
    return ""


# Any: an SDK's object, or the JSON it was parsed from.
def _attribute(value: object, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - some exceptions of HTTP clients have properties that raise
        return None
