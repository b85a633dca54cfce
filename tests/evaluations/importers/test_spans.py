"""Spans of OpenTelemetry: what each instrumentation writes of the same calls, and evaluations of them.

test_importers.py says which releases wrote the files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from meruit.evaluations.evaluation import Case
from meruit.evaluations.importers.support.pieces import ImportedCase
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, survey, with_claim

FILES = Path(__file__).parent / "files"
Json = dict[str, Any]
SAID = {"Capital of France?": "Paris", "Capital of Norway?": "I think Oslo", "DIE": None}
WEATHER = {"Weather in Paris?": "It is sunny in Paris."}
# The input tokens of one call, and those of them that a cache had, and that were written to it.
PLAIN, CACHED, ANTHROPIC = (20, 0, 0), (12, 8, 0), (12, 8, 5)


def read(path: Path) -> list[Case]:
    source = ImportSource(path)
    importer = recognise(source)
    assert importer.name == "otel"
    return [with_claim(one, "otel") for one in importer.read(source) if isinstance(one, ImportedCase)]


def answer(case: Case) -> Any:
    return (case.output or {}).get("text")


@pytest.mark.parametrize(
    ("name", "said", "tokens"),
    [
        ("otel_openai_v2.jsonl", SAID | WEATHER, PLAIN),
        ("otel_openai_v2_details.jsonl", SAID | WEATHER, PLAIN),
        ("otel_openai_v2_spans.jsonl", SAID | WEATHER, PLAIN),
        ("otel_openllmetry.jsonl", SAID | WEATHER, CACHED),
        ("otel_openinference.jsonl", SAID | WEATHER, CACHED),
        ("otel_logfire.jsonl", SAID | WEATHER, CACHED),
        ("otel_anthropic.jsonl", {**SAID, "Weather in Paris?": "no idea"}, ANTHROPIC),
        ("otel_pydantic_ai.jsonl", {"Capital of France?": "Paris", "DIE": None} | WEATHER, CACHED),
    ],
)
def test_every_instrumentation_says_the_same(
    name: str, said: dict[str, str | None], tokens: tuple[int, int, int]
) -> None:
    cases = {case.input["prompt"]: case for case in read(FILES / name)}
    assert {prompt: answer(case) for prompt, case in cases.items()} == said
    # Half of these programs caught the error of the call: it stays an error.
    assert [prompt for prompt, case in cases.items() if case.error is not None] == ["DIE"]
    for prompt, calls in (("Capital of France?", 1), ("Weather in Paris?", 2)):
        usage = cases[prompt].metadata["usage"]
        assert usage["output_tokens"] == 3 * calls
        assert (usage["input_tokens"], usage["cache_read_tokens"], usage["cache_write_tokens"]) == tuple(
            one * calls for one in tokens
        )
    messages = cases["Weather in Paris?"].metadata["messages"]
    assert [one["role"] for one in messages][-4:] == ["user", "assistant", "tool", "assistant"]
    assert messages[-2]["content"] == "sunny"
    (call,) = messages[-3]["tool_calls"]
    assert call["function"]["name"] == "weather"


def test_online_evaluations_are_claims_of_their_trace() -> None:
    cases = {case.input["prompt"]: case for case in read(FILES / "otel_pydantic_evals.jsonl")}
    # A word that is not a verdict leaves a pass open; so does an evaluator that died.
    assert {prompt: case.claimed for prompt, case in cases.items()} == {
        "Capital of France?": None,
        "Capital of Norway?": "fail",
        "2 + 2?": None,
        "DIE": None,
    }
    origin = cases["Capital of France?"].metadata["origin"]
    assert origin["checks"] == {"Right": True, "Broken": True}
    assert origin["scores"] == {"Right": 1.0, "length": 0.05, "tone": "neutral", "Broken": 1.0}
    assert cases["2 + 2?"].metadata["origin"]["checks"] == {"Right": True}


def attribute(key: str, value: str | float) -> Json:
    return {"key": key, "value": {"stringValue" if isinstance(value, str) else "doubleValue": value}}


def span(trace: str, name: str, parent: str = "", **attributes: str | float) -> Json:
    written = [attribute(f"gen_ai.{key.replace('__', '.')}", value) for key, value in attributes.items()]
    return {"traceId": trace, "spanId": name, "parentSpanId": parent, "attributes": written}


def result(trace: str | None, name: str, label: str | float, **more: str) -> Json:
    kind = "label" if isinstance(label, str) else "value"
    written = [attribute("gen_ai.evaluation.name", name), attribute(f"gen_ai.evaluation.score.{kind}", label)]
    written += [attribute(key.replace("__", "."), value) for key, value in more.items()]
    return {"eventName": "gen_ai.evaluation.result", "attributes": written} | (
        {} if trace is None else {"traceId": trace}
    )


def write(path: Path, spans: list[Json], records: list[Json] | None = None) -> Path:
    documents: list[Json] = [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]
    documents.append({"resourceLogs": [{"scopeLogs": [{"logRecords": records or []}]}]})
    path.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return path


def test_evaluations_of_one_name_are_all_counted(tmp_path: Path) -> None:
    spans = [span(trace, f"s{trace}", operation__name="chat", response__id=f"r{trace}") for trace in "abcd"]
    records = [
        result("a", "right", "fail"),
        result("a", "right", "pass"),
        result("b", "right", "pass"),
        result("b", "length", 0.2),
        # Without a trace, the reply says whose it is.
        result(None, "right", "pass", gen_ai__response__id="rc"),
        result("d", "right", 0.5),
    ]
    path = write(tmp_path / "spans.jsonl", spans, records)
    cases = {case.id: case for case in read(path)}
    assert {name: case.claimed for name, case in cases.items()} == {"a": "fail", "b": "pass", "c": "pass", "d": "fail"}
    assert cases["a"].metadata["origin"]["checks"] == {"right": False, "right #2": True}
    assert not survey(ImportSource(path), recognise(ImportSource(path))).is_partial


def test_evaluations_of_spans_elsewhere_make_an_import_partial(tmp_path: Path) -> None:
    spans = [span("a", "s", operation__name="chat")]
    path = write(tmp_path / "spans.jsonl", spans, [result("b", "right", "pass"), result("a", "right", "pass")])
    found = survey(ImportSource(path), recognise(ImportSource(path)))
    assert (found.cases, found.claimed, found.is_partial) == (1, 1, True)


def test_tokens_of_spans_around_calls_are_counted_once(tmp_path: Path) -> None:
    def used(trace: str, name: str, parent: str = "", tokens: int = 10, **more: str) -> Json:
        return span(trace, name, parent, usage__input_tokens=tokens, **more)

    spans = [
        # An agent that sums up its calls, through a span that counts nothing.
        used("a", "agent", tokens=30, operation__name="invoke_agent"),
        span("a", "step", "agent", operation__name="chat"),
        used("a", "one", "step", operation__name="chat"),
        used("a", "two", "step", tokens=20, operation__name="chat"),
        # An agent elsewhere, whose calls are not in the file.
        used("b", "far", operation__name="invoke_agent"),
        # One reply, seen by two instrumentations; and a span that was sent twice.
        used("c", "first", operation__name="chat", response__id="r"),
        used("c", "second", operation__name="chat", response__id="r"),
        used("d", "again", operation__name="chat"),
        used("d", "again", operation__name="chat"),
        # Spans that name each other as parents.
        used("e", "left", "right", operation__name="chat"),
        used("e", "right", "left", operation__name="chat"),
    ]
    cases = {case.id: case for case in read(write(tmp_path / "spans.jsonl", spans))}
    assert {name: case.metadata.get("usage", {}).get("input_tokens") for name, case in cases.items()} == {
        "a": 30,
        "b": 10,
        "c": 10,
        "d": 10,
        "e": None,
    }


def test_a_trace_of_embeddings_alone_is_not_a_case(tmp_path: Path) -> None:
    spans = [span("a", "s", operation__name="embeddings"), span("b", "t", operation__name="chat")]
    assert [case.id for case in read(write(tmp_path / "spans.jsonl", spans))] == ["b"]


def test_thoughts_are_not_the_answer(tmp_path: Path) -> None:
    parts = [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "4"}]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "2 + 2?"}]}]
    texts = {
        "input__messages": json.dumps(asked),
        "output__messages": json.dumps([{"role": "assistant", "parts": parts}]),
    }
    instructions = json.dumps([{"type": "text", "content": "Be brief."}])
    spans = [span("a", "s", operation__name="chat", system_instructions=instructions, **texts)]
    (case,) = read(write(tmp_path / "spans.jsonl", spans))
    assert answer(case) == "4"
    assert [one["role"] for one in case.metadata["messages"]] == ["system", "user", "assistant"]


def test_what_an_agent_gave_back_is_its_output(tmp_path: Path) -> None:
    said = json.dumps([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "Let me see."}])
    agent = span("a", "s", operation__name="invoke_agent", input__messages=said)
    agent["attributes"].append(attribute("final_result", '{"sum": 4}'))
    (case,) = read(write(tmp_path / "spans.jsonl", [agent]))
    assert case.output == {"sum": 4}


def test_an_agent_below_a_request_says_what_it_did(tmp_path: Path) -> None:
    said = json.dumps([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "Let me see."}])
    request = {
        "traceId": "a",
        "spanId": "r",
        "name": "POST /ask",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "9000001",
    }
    agent = span("a", "s", "r", operation__name="invoke_agent", input__messages=said, agent__name="adder")
    agent |= {"startTimeUnixNano": "2000001", "endTimeUnixNano": "5000001"}
    agent["attributes"] += [attribute("final_result", '{"sum": 4}'), attribute("gen_ai.conversation.id", "c-1")]
    (case,) = read(write(tmp_path / "spans.jsonl", [request, agent, span("a", "t", "s", operation__name="chat")]))
    assert (case.output, case.tags["agent"], case.group) == ({"sum": 4}, "adder", "c-1")
    assert case.metadata["duration_ms"] == 3


def test_otlp_without_generative_ai_holds_no_cases(tmp_path: Path) -> None:
    path = write(tmp_path / "spans.jsonl", [{"traceId": "a", "spanId": "s", "name": "GET /"}])
    assert read(path) == []


def test_messages_of_both_kinds_of_events_are_read(tmp_path: Path) -> None:
    asked, said = (json.dumps([{"role": role, "content": "of the operation"}]) for role in ("user", "assistant"))
    details = {
        "eventName": "gen_ai.client.inference.operation.details",
        "attributes": [attribute("gen_ai.input.messages", asked), attribute("gen_ai.output.messages", said)],
    }
    question = {"eventName": "gen_ai.user.message", "attributes": [attribute("content", "of its own")]}
    choice = {"eventName": "gen_ai.choice", "attributes": [attribute("message", '{"content": "of its own"}')]}
    for number, order in enumerate(([details, question, choice], [question, choice, details], [question, choice])):
        records = [{**one, "traceId": "a", "spanId": "s"} for one in order]
        path = write(tmp_path / f"{number}.jsonl", [span("a", "s", operation__name="chat")], records)
        (case,) = read(path)
        expected = "of the operation" if details in order else "of its own"
        assert (case.input["prompt"], answer(case)) == (expected, expected)


@pytest.mark.parametrize("key", ["gen_ai.operation.name", "gen_ai.response.id"])
@pytest.mark.parametrize("value", [{"arrayValue": {"values": []}}, {"kvlistValue": {}}, {"intValue": "5"}])
def test_names_that_are_not_texts_are_passed_over(tmp_path: Path, key: str, value: Json) -> None:
    one = span("a", "s", request__model="m", usage__input_tokens=10)
    one["attributes"].append({"key": key, "value": value})
    record = result(None, "right", "pass")
    record["attributes"].append({"key": key, "value": value})
    (case,) = read(write(tmp_path / "spans.jsonl", [one], [record]))
    assert (case.claimed, case.metadata["usage"]["input_tokens"]) == (None, 10)


@pytest.mark.parametrize("key", ["output.value", "final_result"])
@pytest.mark.parametrize(
    ("written", "output"),
    [
        *((text, {"text": text}) for text in ("42", "true", "null", '"yes"', "{cut")),
        *((0.0, {"text": 0.0}), ('{"a": 1}', {"a": 1}), ("[1]", {"text": [1]}), ("{}", {})),
    ],
)
def test_an_answer_that_looks_like_json_stays_text(
    tmp_path: Path, key: str, written: str | float, output: Json
) -> None:
    one = span("a", "s", operation__name="invoke_agent")
    one["attributes"] += [attribute(key, written), attribute("input.value", "1e3")]
    (case,) = read(write(tmp_path / "spans.jsonl", [one]))
    assert (case.output, case.input["prompt"]) == (output, "1e3")


def test_tokens_below_a_span_hide_its_own_only_where_they_repeat_them(tmp_path: Path) -> None:
    def used(trace: str, name: str, parent: str = "", tokens: int = 10, **more: str) -> Json:
        return span(trace, name, parent, usage__input_tokens=tokens, **more)

    spans = [
        # Embeddings are not among what an agent sums up.
        used("a", "agent", tokens=1_000, operation__name="invoke_agent"),
        used("a", "search", "agent", 8, operation__name="embeddings"),
        # A call, one of whose tools made another call.
        used("b", "call", tokens=1_000, operation__name="chat", response__id="r1"),
        span("b", "tool", "call", operation__name="execute_tool"),
        used("b", "inner", "tool", 8, operation__name="chat", response__id="r2"),
        # The same call twice, one span around the other.
        used("c", "outer", tokens=100, operation__name="chat", response__id="r3"),
        used("c", "inner", "outer", 100, operation__name="chat", response__id="r3"),
        # A call of a framework, which has a reply of its own.
        used("d", "outer", tokens=100, operation__name="chat", response__id="r4"),
        used("d", "inner", "outer", 100, operation__name="chat", response__id="r5"),
        # An agent that knows of more calls than were recorded, and one that knows of fewer.
        used("e", "agent", tokens=1_000, operation__name="invoke_agent"),
        used("e", "inner", "agent", 8, operation__name="chat", response__id="r6"),
        used("f", "agent", tokens=8, operation__name="invoke_agent"),
        used("f", "one", "agent", 500, operation__name="chat"),
        used("f", "two", "agent", 500, operation__name="chat"),
    ]
    cases = {case.id: case for case in read(write(tmp_path / "spans.jsonl", spans))}
    assert {name: case.metadata["usage"]["input_tokens"] for name, case in cases.items()} == {
        "a": 1_008,
        "b": 1_008,
        "c": 100,
        "d": 100,
        "e": 1_000,
        "f": 1_000,
    }
