"""Spans of OpenTelemetry's GenAI conventions, in files as its collectors write them (OTLP as JSON)."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

# Any: a value of an attribute is of any type.
from typing import Any

import msgspec

from meruit.errors import AuthorError, FetchError, FetchFailed
from meruit.model.decoding import json_decoder
from meruit.model.metering import AttributionKind, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.support.file_reader import UsageText, read_texts
from meruit.usage.providers.support.http_client import UsageSourceContext
from meruit.usage.providers.support.paging import DAY, no_pages
from meruit.usage.providers.support.usage_blocks import tokens_of

ENDINGS = (".json", ".jsonl", ".ndjson")
SUMS = frozenset({"invoke_agent", "create_agent", "invoke_workflow", "execute_tool"})
"""Operations whose spans may repeat the usage of the calls inside them; they are skipped."""
_LAST_NS = 253_402_300_799 * 10**9
_DIGITS = 21
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULT_ATTRIBUTES = {"key": "", "project": "service.name", "session": "gen_ai.conversation.id"}


class _Attribute(Record, frozen=True):
    key: str
    value: dict[str, Any] | None = None


class _OtelSpan(Record, frozen=True, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    start_time_unix_nano: int | str = 0
    attributes: tuple[_Attribute, ...] = ()


class _Scope(Record, frozen=True):
    spans: tuple[_OtelSpan, ...] = ()


class _Resource(Record, frozen=True):
    attributes: tuple[_Attribute, ...] = ()


class _Resources(Record, frozen=True, rename="camel"):
    resource: _Resource | None = None
    scope_spans: tuple[_Scope, ...] = ()


class _Document(Record, frozen=True, rename="camel"):
    resource_spans: list[_Resources]


_DOCUMENT = json_decoder(_Document)


@usage_sources.add(
    "otel",
    is_file=True,
    self_reported=True,
    options={
        "key": "The attribute that holds the key (default: none).",
        "project": f"The attribute that holds the project (default: {_DEFAULT_ATTRIBUTES['project']}).",
        "session": f"The attribute that holds the session (default: {_DEFAULT_ATTRIBUTES['session']}).",
    },
)
class OtelSpans:
    """OpenTelemetry GenAI spans, call by call, from OTLP JSON files or lines; reported by the client itself."""

    bucket = 0 * DAY
    longest = 3650 * DAY

    def __init__(self, _provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        self._file = account.file or ""
        self._clock = context.clock
        self._key_attributes = {
            kind: account.options.get(kind, default) for kind, default in _DEFAULT_ATTRIBUTES.items()
        }
        named = {AttributionKind(kind) for kind, attribute in self._key_attributes.items() if attribute}
        self._kinds = frozenset({*named, AttributionKind.REQUESTS, AttributionKind.WINDOW})

    @property
    def kinds(self) -> frozenset[AttributionKind]:
        """The kinds of attribution key that have an attribute."""
        return self._kinds

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """Yield the calls that began in a window, a page for each file; raises FetchFailed."""
        for text, rows in await self._read_all():
            found = tuple(row for row in rows if window.start <= row.start < window.end)
            yield Page(self._clock(), found, raw=text.content)

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield the spans of these calls; raises FetchFailed."""
        wanted = frozenset(ids)
        for text, rows in await self._read_all():
            yield Page(self._clock(), tuple(row for row in rows if row.request_id in wanted), raw=text.content)

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield nothing: spans have no costs."""
        return no_pages(window)

    async def _read_all(self) -> list[tuple[UsageText, list[UsageRow]]]:
        seen: dict[tuple[str, str], UsageRow] = {}
        found: list[tuple[UsageText, list[UsageRow]]] = []
        for text in await read_texts(self._file, ENDINGS, self._clock):
            rows: list[UsageRow] = []
            for place, document in _documents(text):
                try:
                    several = [*_rows(document, self._key_attributes)]
                except (AuthorError, ValueError) as problem:
                    raise FetchFailed(FetchError.MALFORMED, f"{place}: {problem}", at=self._clock()) from None
                for name, row in several:
                    # Collectors send a span again when its delivery was not confirmed.
                    if seen.setdefault(name, row) is row:
                        rows.append(row)
                    elif seen[name] != row:
                        message = f"{place}: two different spans have the id {name[1]}"
                        raise FetchFailed(FetchError.MALFORMED, message, at=self._clock())
            found.append((text, rows))
        return found


def _documents(text: UsageText) -> Iterator[tuple[str, _Document]]:
    """Yield one document, or one for each line."""
    try:
        whole = _DOCUMENT.decode(text.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        lines = [*text.lines()]
    else:
        yield text.name, whole
        return
    for number, line in lines:
        place = f"{text.name}, line {number}"
        try:
            document = _DOCUMENT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            cut_off = "truncated" in str(problem) and number == lines[-1][0]
            # The last line may still be written.
            kind = FetchError.PARTIAL_PAGE if cut_off else FetchError.MALFORMED
            raise FetchFailed(kind, f"{place}: not valid OTLP spans: {problem}") from None
        yield place, document


def _rows(document: _Document, attribution_keys: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], UsageRow]]:
    for part in document.resource_spans:
        about = _values(part.resource.attributes if part.resource else ())
        for span in (span for scope in part.scope_spans for span in scope.spans):
            row = _row(span, about | _values(span.attributes), attribution_keys)
            if row is not None:
                yield (span.trace_id, span.span_id), row


def _row(span: _OtelSpan, values: Mapping[str, Any], attribution_keys: Mapping[str, str]) -> UsageRow | None:
    """Build the span's row; None for a span without usage, or with the usage of other spans."""
    tokens = None if values.get("gen_ai.operation.name") in SUMS else tokens_of(values, "otel")
    if tokens is None:
        return None
    at = _moment(span.start_time_unix_nano)
    model = values.get("gen_ai.response.model") or values.get("gen_ai.request.model") or ""
    key, project, session = (str(values.get(attribution_keys[name]) or "") for name in ("key", "project", "session"))
    return UsageRow(
        start=at,
        end=at,
        tokens=tokens,
        model=str(model),
        key=key,
        project=project,
        session=session,
        request_id=str(values.get("gen_ai.response.id") or ""),
    )


def _values(attributes: Sequence[_Attribute]) -> dict[str, Any]:
    return {one.key: _value(one.value or {}) for one in attributes}


def _value(value: Mapping[str, Any]) -> Any:
    match value:
        # OTLP writes integers as texts, because JSON numbers may lose their last digits.
        case {"intValue": str(digits)} if digits.removeprefix("-").isascii() and digits.removeprefix("-").isdigit():
            return int(digits[:20])
        case {"intValue": found} | {"stringValue": found} | {"doubleValue": found} | {"boolValue": found}:
            return found
        case _:
            return None


def _moment(nanoseconds: int | str) -> datetime:
    text = str(nanoseconds)
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS or not 0 < int(text) <= _LAST_NS:
        raise ValueError(f"{text[:40]!r} is not a valid time of a span")
    return _EPOCH + timedelta(microseconds=int(text) // 1000)
