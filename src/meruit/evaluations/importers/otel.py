"""OpenTelemetry spans of generative AI as OTLP JSON: one case for each trace, with its evaluation events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meruit.errors import ImportDamaged
from meruit.evaluations.importers.support.json_stream import CUT, load, load_lines
from meruit.evaluations.importers.support.messages import last_answer, prompt_of, to_call, to_messages
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    all_hold,
    build_case,
    items,
    mapping,
    number,
    verdict_word,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

MAX_SPANS = 500_000
"""Spans that are held together: those of a trace lie anywhere in the file."""
EVALUATION = "gen_ai.evaluation."
EVENT = "gen_ai.evaluation.result"
STATUS_ERROR = (2, "STATUS_CODE_ERROR")
TOOL = "execute_tool"
WRAPPERS = frozenset({"invoke_agent", "create_agent", "invoke_workflow", TOOL})
"""Operations whose tokens are those of the calls within."""
Attributes = Mapping[str, Any]


def is_otel(source: ImportSource) -> bool:
    """Recognise OTLP by its envelope, and that its spans are of generative AI."""
    wrapped = source.head.lstrip().startswith(b"{") and (source.says("resourceSpans") or source.says("resourceLogs"))
    return wrapped and b"gen_ai." in source.head


@importers.add(
    "otel",
    recognise=is_otel,
    examples=[
        (
            {
                "spans.jsonl": '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t1", "spanId": "s1",'
                ' "name": "chat m-1", "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue":'
                ' "chat"}}], "events": [{"name": "gen_ai.evaluation.result", "attributes": [{"key":'
                ' "gen_ai.evaluation.name", "value": {"stringValue": "correct"}}, {"key":'
                ' "gen_ai.evaluation.score.label", "value": {"stringValue": "pass"}}]}]}]}]}]}\n'
            },
            {"t1": "pass"},
        )
    ],
)
def read_otel(source: ImportSource) -> Iterator[Piece]:
    """OpenTelemetry GenAI spans as OTLP JSON, one document or one a line; a trace is a case."""
    yield RunFacts({"origin": "otel"})
    traces: dict[str, list[Mapping[str, Any]]] = {}
    events: dict[str, list[Attributes]] = {}
    spans = 0
    for document in _documents(source):
        if document == CUT:
            yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
            continue
        for span in _inside(document, "resourceSpans", "scopeSpans", "spans"):
            traces.setdefault(str(span.get("traceId")), []).append(span)
            spans += 1
            if spans > MAX_SPANS:
                raise ImportDamaged(f"the file has more than {MAX_SPANS:,} spans; import parts of it")
        for record in _inside(document, "resourceLogs", "scopeLogs", "logRecords"):
            attributes = _attributes(record)
            if record.get("eventName") == EVENT or f"{EVALUATION}name" in attributes:
                events.setdefault(str(record.get("traceId")), []).append(attributes)
    for trace, members in traces.items():
        if any(key.startswith("gen_ai.") for span in members for key in _attributes(span)):
            yield _to_case(trace, members, events.get(trace, []))


def _documents(source: ImportSource) -> Iterator[Any]:
    try:
        with source.open() as file:
            yield from load_lines(file)
    except ImportDamaged:
        # One document over several lines.
        yield source.load_small()


def _inside(document: Any, *path: str) -> Iterator[Mapping[str, Any]]:
    if not path:
        yield mapping(document)
        return
    for part in items(mapping(document).get(path[0])):
        yield from _inside(part, *path[1:])


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(mapping(one).get("key")): _value(mapping(mapping(one).get("value")))
        for one in items(holder.get("attributes"))
    }


def _value(value: Mapping[str, Any], depth: int = 0) -> Any:
    kind, found = next(iter(value.items()), ("", None))
    if depth > 20:
        return None
    if kind == "intValue":
        return int(str(found)) if str(found).lstrip("-").isdigit() and len(str(found)) < 20 else None
    if kind == "arrayValue":
        return [_value(mapping(one), depth + 1) for one in items(mapping(found).get("values"))]
    if kind == "kvlistValue":
        pairs = [mapping(one) for one in items(mapping(found).get("values"))]
        return {str(one.get("key")): _value(mapping(one.get("value")), depth + 1) for one in pairs}
    return found


def _nanoseconds(span: Mapping[str, Any], name: str) -> int:
    text = str(span.get(name, ""))
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _to_case(trace: str, spans: list[Mapping[str, Any]], logged: list[Attributes]) -> ImportedCase:
    ordered = sorted(spans, key=lambda span: _nanoseconds(span, "startTimeUnixNano"))
    ids = {span.get("spanId") for span in spans}
    root = next((span for span in ordered if span.get("parentSpanId") not in ids), ordered[0])
    known = [(span, _attributes(span)) for span in ordered]
    calls = [attributes for _, attributes in known if attributes.get("gen_ai.operation.name") not in WRAPPERS]
    messages = _messages(known)
    status = mapping(root.get("status"))
    whole = _attributes(root)
    began, ended = _nanoseconds(root, "startTimeUnixNano"), _nanoseconds(root, "endTimeUnixNano")
    case = build_case(
        trace,
        given={"prompt": prompt_of(messages)},
        output=last_answer(messages),
        tags={
            "agent": whole.get("gen_ai.agent.name"),
            "model": next((one for attributes in calls if (one := attributes.get("gen_ai.request.model"))), None),
        },
        messages=messages,
        tokens=sum((_tokens(attributes) for attributes in calls), TokenClasses()),
        duration_ms=(ended - began) / 1e6 if ended > began > 0 else None,
        error=str(status.get("message") or "the span ended with an error")
        if status.get("code") in STATUS_ERROR
        else None,
        group=whole.get("gen_ai.conversation.id"),
    )
    inside = [
        _attributes(mapping(event)) for span, _ in known for event in items(span.get("events")) if _is_result(event)
    ]
    return ImportedCase(case, _claim([*inside, *logged]))


def _is_result(event: Any) -> bool:
    return mapping(event).get("name") == EVENT


def _tokens(attributes: Attributes) -> TokenClasses:
    return TokenClasses.inclusive(
        given=attributes.get("gen_ai.usage.input_tokens"),
        read=attributes.get("gen_ai.usage.cache_read.input_tokens"),
        written=attributes.get("gen_ai.usage.cache_creation.input_tokens"),
        made=attributes.get("gen_ai.usage.output_tokens"),
    )


def _messages(known: Sequence[tuple[Mapping[str, Any], Attributes]]) -> list[dict[str, Any]]:
    """The conversation of the span that recorded most of it, and the tools that other spans ran."""
    longest: list[dict[str, Any]] = []
    for _, attributes in known:
        found = [
            message
            for name in ("gen_ai.input.messages", "gen_ai.output.messages")
            for message in to_messages(_parse_value(attributes.get(name)))
        ]
        longest = max(longest, found, key=len)
    if any("tool_calls" in one for one in longest):
        return longest
    tools = [
        {
            "name": attributes.get("gen_ai.tool.name"),
            "arguments": _parse_value(attributes.get("gen_ai.tool.call.arguments")) or {},
        }
        for _, attributes in known
        if attributes.get("gen_ai.operation.name") == TOOL
    ]
    ran = [{"role": "assistant", "content": "", "tool_calls": [to_call(one)]} for one in tools]
    return [*longest[:-1], *ran, *longest[-1:]]


def _parse_value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return load(value.encode())
    except (ImportDamaged, UnicodeEncodeError):
        return value


def _claim(results: list[Attributes]) -> Claim:
    several = [(str(one.get(f"{EVALUATION}name", "evaluation")), one) for one in results if not one.get("error.type")]
    broken = len(several) < len(results)
    checks = {name: verdict_word(one.get(f"{EVALUATION}score.label")) for name, one in several}
    known: dict[str, bool | None] = {name: one for name, one in checks.items() if one is not None}
    numbers = [number(one.get(f"{EVALUATION}score.value")) for _, one in several]
    success = all_hold(known)
    return Claim(
        # An evaluation that failed could have said no.
        success=None if success and (broken or len(known) < len(checks)) else success,
        score=numbers[0] if not known and not broken and len(numbers) == 1 else None,
        checks=known,
        scores={name: number(one.get(f"{EVALUATION}score.value")) for name, one in several},
        reasons={
            name: str(one[f"{EVALUATION}explanation"])[:2_000]
            for name, one in several
            if one.get(f"{EVALUATION}explanation")
        },
    )
