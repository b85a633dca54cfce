"""OpenTelemetry spans of generative AI as OTLP JSON: one case for each trace, with its evaluation events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meruit.errors import ImportDamaged
from meruit.evaluations.evaluation import Case
from meruit.evaluations.importers.support.json_stream import CUT, load, load_lines
from meruit.evaluations.importers.support.messages import last_answer, prompt_of, text_of, to_call, to_messages
from meruit.evaluations.importers.support.openinference import to_gen_ai
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
    number_names,
    plain,
    verdict_word,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.token_sums import CountedOperation, sum_tokens
from meruit.registry import importers

MAX_SPANS = 500_000
"""Spans and events that are held together: those of a trace lie anywhere in the file."""
EVALUATION = "gen_ai.evaluation."
EVENT = "gen_ai.evaluation.result"
STATUS_ERROR = (2, "STATUS_CODE_ERROR")
OPERATION, RESPONSE = "gen_ai.operation.name", "gen_ai.response.id"
TEXTS = (OPERATION, RESPONSE)
"""Attributes of which only a text is read."""
QUESTIONS, ANSWERS = "gen_ai.input.messages", "gen_ai.output.messages"
TOOL = "execute_tool"
EMBEDDINGS = "embeddings"
DETAILS = "gen_ai.client.inference.operation.details"
"""The event that has the messages of a span, where its instrumentation does not write them to the span."""
CHOICE = "gen_ai.choice"
ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
"""Events of one message each, as instrumentations write them by default."""
CONVERSATIONS = ((QUESTIONS, ANSWERS), ("pydantic_ai.all_messages",))
Attributes = Mapping[str, Any]


def is_otel(source: ImportSource) -> bool:
    """Recognise OTLP by its envelope."""
    return source.head.lstrip().startswith(b"{") and (source.says("resourceSpans") or source.says("resourceLogs"))


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
    """GenAI or OpenInference spans and their log events as OTLP JSON, one document or one a line; a trace is a case."""
    yield RunFacts({"origin": "otel"})
    traces: dict[str, dict[str, _Span]] = {}
    logged: dict[str, list[_Event]] = {}
    held = 0
    for document in _documents(source):
        if document == CUT:
            yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
            continue
        for found in _inside(document, "resourceSpans", "scopeSpans", "spans"):
            span = _to_span(found)
            # A span that was sent twice is one.
            traces.setdefault(str(found.get("traceId")), {})[span.id] = span
            held += 1
        for found in _inside(document, "resourceLogs", "scopeLogs", "logRecords"):
            event = _to_event(found)
            if event.name.startswith("gen_ai.") or event.is_result:
                logged.setdefault(str(found.get("traceId")), []).append(event)
                held += 1
        if held > MAX_SPANS:
            raise ImportDamaged(f"the file has more than {MAX_SPANS:,} spans and events; import parts of it")
    unmatched = _match_results_to_traces(traces, logged)
    if unmatched:
        yield ImportNote(f"{unmatched} evaluation results are of spans that are not in the file", partial=True)
    for trace, members in traces.items():
        spans, events = _with_messages([*members.values()], logged.get(trace, []))
        operations = {one.attributes.get(OPERATION, "") for one in spans if one.is_gen_ai}
        results = [one.attributes for one in events if one.is_result]
        # A search for texts that are alike is not work of an agent.
        if operations - {EMBEDDINGS} or results:
            yield ImportedCase(_to_case(trace, spans), _claim(results))


@dataclass(frozen=True, slots=True)
class _Event:
    """What happened within a span: an event of its own, or a log record that names the span."""

    name: str
    span: str
    attributes: Attributes
    # Any: the body of a log record is any JSON.
    body: Any = None

    @property
    def is_result(self) -> bool:
        return self.name == EVENT or f"{EVALUATION}name" in self.attributes


@dataclass(frozen=True, slots=True)
class _Span:
    """One operation of a trace."""

    id: str
    parent: str
    attributes: Attributes
    events: tuple[_Event, ...]
    began: int
    ended: int
    problem: str | None
    """Why it failed; None where it did not."""

    @property
    def is_gen_ai(self) -> bool:
        return any(name.startswith("gen_ai.") for name in self.attributes)


def _to_span(found: Mapping[str, Any]) -> _Span:
    attributes, status = to_gen_ai(_attributes(found)), mapping(found.get("status"))
    why = status.get("message") or attributes.get("error.type") or "the span ended with an error"
    return _Span(
        id=str(found.get("spanId")),
        parent=str(found.get("parentSpanId")),
        attributes=attributes,
        events=tuple(_to_event(mapping(one), str(found.get("spanId"))) for one in items(found.get("events"))),
        began=_nanoseconds(found, "startTimeUnixNano"),
        ended=_nanoseconds(found, "endTimeUnixNano"),
        problem=str(why) if status.get("code") in STATUS_ERROR else None,
    )


def _to_event(found: Mapping[str, Any], span: str | None = None) -> _Event:
    attributes = _attributes(found)
    name = found.get("name") or found.get("eventName") or attributes.get("event.name")
    return _Event(str(name), span or str(found.get("spanId")), attributes, _value(mapping(found.get("body"))))


def _match_results_to_traces(traces: Mapping[str, Mapping[str, _Span]], logged: dict[str, list[_Event]]) -> int:
    """Move evaluation results to the trace whose reply they name; return how many match no reply."""
    others = [one for trace, events in logged.items() if trace not in traces for one in events if one.is_result]
    if not others:
        return 0
    traces_by_reply = {
        one.attributes.get(RESPONSE): trace for trace, members in traces.items() for one in members.values()
    }
    unmatched = 0
    for event in others:
        reply = event.attributes.get(RESPONSE)
        trace = traces_by_reply.get(reply) if reply else None
        if trace is None:
            unmatched += 1
        else:
            logged.setdefault(trace, []).append(event)
    return unmatched


def _with_messages(spans: list[_Span], logged: list[_Event]) -> tuple[list[_Span], list[_Event]]:
    """The spans in order with the messages that their events have, and all events."""
    ordered = sorted(spans, key=lambda one: one.began)
    events = [*(event for one in ordered for event in one.events), *logged]
    single: dict[str, dict[str, list[Any]]] = {}
    details: dict[str, dict[str, Any]] = {}
    for event in events:
        message = mapping(event.body) or event.attributes
        if event.name == DETAILS:
            found = {key: value for key, value in event.attributes.items() if key.startswith("gen_ai.")}
            details.setdefault(event.span, {}).update(found)
        elif event.name == CHOICE:
            inner = mapping(_parse_value(message.get("message")))
            single.setdefault(event.span, {}).setdefault(ANSWERS, []).append({"role": "assistant", **inner})
        elif event.name in ROLES:
            asked = {"role": ROLES[event.name], **message, "tool_call_id": message.get("id")}
            single.setdefault(event.span, {}).setdefault(QUESTIONS, []).append(asked)
    # A span may have several of the three, which then say the same.
    return [
        replace(one, attributes={**single.get(one.id, {}), **details.get(one.id, {}), **one.attributes})
        for one in ordered
    ], events


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
    pairs = [mapping(one) for one in items(holder.get("attributes"))]
    found = {str(one.get("key")): _value(mapping(one.get("value"))) for one in pairs}
    return {key: value for key, value in found.items() if key not in TEXTS or isinstance(value, str)}


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


def _to_case(trace: str, spans: list[_Span]) -> Case:
    root, agent = _outermost(spans)
    messages = _messages(spans, agent)
    whole = agent.attributes
    prompt = prompt_of(messages) or _parse_object(whole.get("input.value"))
    # An agent may return an object, which no message has.
    answer = _parse_object(whole.get("final_result"))
    if answer is None:
        # Beside messages, the value is the reply of the provider as a whole.
        answer = last_answer(messages) if messages else _parse_object(whole.get("output.value"))
    last = next((one for one in reversed(spans) if one.is_gen_ai), agent)
    models = [one.attributes for one in spans if one.attributes.get(OPERATION) != EMBEDDINGS]
    return build_case(
        trace,
        given={"prompt": "" if prompt is None else prompt},
        output=answer,
        tags={
            "agent": whole.get("gen_ai.agent.name"),
            "model": next((one for attributes in models if (one := attributes.get("gen_ai.request.model"))), None),
        },
        messages=messages,
        tokens=_count_tokens(spans),
        duration_ms=(agent.ended - agent.began) / 1e6 if agent.ended > agent.began > 0 else None,
        # A program may catch the error of a call, and have no answer all the same.
        error=agent.problem or root.problem or (last.problem if answer is None else None),
        group=whole.get("gen_ai.conversation.id"),
    )


def _outermost(spans: Sequence[_Span]) -> tuple[_Span, _Span]:
    """The root of the trace, and the agent: the one span of generative AI that holds all others, or else the root."""
    ids = {one.id for one in spans}
    below: dict[str, list[_Span]] = {}
    for one in spans:
        below.setdefault(one.parent, []).append(one)
    roots = [one for one in spans if one.parent not in ids]
    agents, waiting = list[_Span](), roots[:]
    while waiting:
        one = waiting.pop()
        if one.is_gen_ai and one.attributes.get(OPERATION) != EMBEDDINGS:
            agents.append(one)
        else:
            waiting += below.get(one.id, ())
    # Spans that name each other as parents have no root.
    root = roots[0] if roots else spans[0]
    return root, agents[0] if len(agents) == 1 else root


def _count_tokens(spans: Sequence[_Span]) -> TokenClasses:
    """Tokens of all calls; two instrumentations of one call both write it, and its reply has one id."""
    return sum_tokens(
        CountedOperation(
            id=one.id,
            parent=one.parent,
            tokens=_tokens(one.attributes),
            reply=one.attributes.get(RESPONSE),
            is_call=bool(one.attributes.get(RESPONSE)),
            is_embedding=one.attributes.get(OPERATION) == EMBEDDINGS,
        )
        for one in spans
    )


def _tokens(attributes: Attributes) -> TokenClasses:
    prefix = "gen_ai.usage"
    # Logfire writes the usage of the provider as it was, and of its classes only these two.
    raw = mapping(_parse_value(attributes.get(f"{prefix}.raw")))
    details = mapping(raw.get("prompt_tokens_details", raw.get("input_tokens_details")))
    return TokenClasses.inclusive(
        given=attributes.get(f"{prefix}.input_tokens"),
        read=attributes.get(f"{prefix}.cache_read.input_tokens", details.get("cached_tokens")),
        written=attributes.get(
            f"{prefix}.cache_creation.input_tokens", attributes.get(f"{prefix}.cache_write.input_tokens")
        ),
        made=attributes.get(f"{prefix}.output_tokens"),
    )


def _conversation(attributes: Attributes, names: Sequence[str]) -> list[dict[str, Any]]:
    found = [message for name in names for message in to_messages(_parse_value(attributes.get(name)))]
    instructions = text_of(_parse_object(attributes.get("gen_ai.system_instructions")))
    if instructions and found and found[0]["role"] != "system":
        found.insert(0, {"role": "system", "content": instructions})
    return [one for one in found if one["content"] or "tool_calls" in one]


def _messages(spans: Sequence[_Span], agent: _Span) -> list[dict[str, Any]]:
    """The conversation of the agent's span, or of that which recorded most, and the tools that other spans ran."""
    several = [_conversation(agent.attributes, names) for names in CONVERSATIONS]
    longest = next((one for one in several if last_answer(one) is not None), [])
    if not longest:
        longest = max((_conversation(one.attributes, names) for one in spans for names in CONVERSATIONS), key=len)
    if any("tool_calls" in one for one in longest):
        return longest
    tools = [
        {
            "name": one.attributes.get("gen_ai.tool.name"),
            "arguments": _parse_object(one.attributes.get("gen_ai.tool.call.arguments")) or {},
        }
        for one in spans
        if one.attributes.get(OPERATION) == TOOL
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


def _parse_object(value: Any) -> Any:
    return _parse_value(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


def _claim(results: list[Attributes]) -> Claim:
    whole = [one for one in results if not one.get("error.type")]
    names = number_names([str(one.get(f"{EVALUATION}name", "evaluation")) for one in whole])
    several = [*zip(names, whole, strict=True)]
    broken = len(several) < len(results)
    labels = {name: one[f"{EVALUATION}score.label"] for name, one in several if one.get(f"{EVALUATION}score.label")}
    checks = {name: verdict_word(label) for name, label in labels.items()}
    known: dict[str, bool | None] = {name: one for name, one in checks.items() if one is not None}
    numbers = {name: number(one.get(f"{EVALUATION}score.value")) for name, one in several}
    success = all_hold(known)
    return Claim(
        # An evaluation that failed could have said no, and so could a word that is not known; a number says neither.
        success=None if success and (broken or len(known) < len(checks)) else success,
        score=next(iter(numbers.values())) if not known and not broken and len(numbers) == 1 else None,
        checks=known,
        scores={name: plain(labels.get(name)) if found is None else found for name, found in numbers.items()},
        reasons={
            name: str(one[f"{EVALUATION}explanation"])[:2_000]
            for name, one in several
            if one.get(f"{EVALUATION}explanation")
        },
    )
