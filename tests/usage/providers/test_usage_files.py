"""Usage out of files: our own rows, and spans of OpenTelemetry."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.providers.opened import HOUR, MINUTE, NOW, Clock, all_of, before, failure_of, rows_of, sum_of

from meruit.errors import FetchError, FetchFailed
from meruit.model.metering import AttributionKind, UsageAccount, UsageSource, Window
from meruit.model.usage import Tokens
from meruit.usage.providers.support import file_reader as folders
from meruit.usage.providers.support.source_factory import open_source

AT = NOW - HOUR
ROW = {"start": AT.isoformat(), "input": 10, "output": 5, "model": "gpt-6", "request_id": "r1", "cost": "0.25"}


def opened(provider: str, path: Path, **options: str) -> UsageSource:
    account = UsageAccount(provider=provider, file=str(path), options=options)
    return open_source(account, client=None, environment={}, clock=Clock())


def files(path: Path) -> UsageSource:
    return opened("files", path)


def written(path: Path, content: object) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


CSV = (
    "start,end,input,output,requests,cached,key,session,cost\n"
    "2026-09-14T11:00:00Z,2026-09-14T11:01:00Z,10,5,2,,k,,0.25\n"
    "2026-09-14T13:00:00+02:00,,1,0,,0,,s,\n"
)


def test_rows_are_read_from_json_lines_and_tables(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "start": (NOW - 3 * HOUR).isoformat()}]
    as_list = written(tmp_path / "list.json", rows)
    as_lines = written(tmp_path / "lines.jsonl", "\n\n".join(map(json.dumps, rows)).encode() + b"\n")
    as_whole = written(
        tmp_path / "whole.json",
        {
            "rows": rows,
            "at": (NOW - MINUTE).isoformat(),
            "watermark": (NOW - HOUR).isoformat(),
            "costs": [{"start": AT.isoformat(), "end": NOW.isoformat(), "amount": "3.5", "item": "x"}],
        },
    )
    for path in (as_list, as_lines, as_whole):
        (found,) = rows_of(all_of(files(path).usage(before(2))))
        assert (found.start, found.end, found.tokens) == (AT, AT, Tokens(10, 5))
        assert (found.cost, found.request_id) == (Decimal("0.25"), "r1")
    (page,) = all_of(files(as_whole).usage(before(2)))
    assert (page.at, page.watermark, page.raw) == (NOW - MINUTE, NOW - HOUR, as_whole.read_bytes())
    (page,) = all_of(files(as_whole).costs(before(2)))
    assert [cost.amount for cost in page.costs] == [Decimal("3.5")]
    assert len(rows_of(all_of(files(as_list).calls(["r1"])))) == 2
    assert rows_of(all_of(files(as_list).calls(["r2"]))) == []


def test_an_empty_cell_is_unknown_and_zero_is_zero(tmp_path: Path) -> None:
    table = written(tmp_path / "usage.csv", b"\xef\xbb\xbf" + CSV.encode())
    first, second = rows_of(all_of(files(table).usage(before(2))))
    assert first.tokens == Tokens(10, 5, 2)
    assert (first.end - first.start, first.key, first.cost) == (MINUTE, "k", Decimal("0.25"))
    assert second.tokens == Tokens(1, 0, None, 0)
    assert (second.start, second.session, second.cost) == (AT, "s", None)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.none() | st.integers(0, 9)), max_size=5))
def test_what_is_written_as_a_table_and_as_json_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, counts: list[tuple[int, int, int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("same")
    rows = [{**ROW, "input": one, "output": two, "requests": three} for one, two, three in counts]
    names = [*ROW, "requests"]
    lines = [
        ",".join(names),
        *(",".join("" if row[name] is None else str(row[name]) for name in names) for row in rows),
    ]
    table = written(folder / "a.csv", "\n".join(lines).encode())
    document = written(folder / "a.json", rows)
    assert rows_of(all_of(files(table).usage(before(2)))) == rows_of(all_of(files(document).usage(before(2))))


def test_a_folder_is_all_of_its_files_in_their_order(tmp_path: Path) -> None:
    written(tmp_path / "b.jsonl", json.dumps({**ROW, "model": "b"}).encode())
    written(tmp_path / "a.json", [{**ROW, "model": "a"}])
    written(tmp_path / "notes.txt", b"not ours")
    (tmp_path / "c.json").mkdir()
    assert [row.model for row in rows_of(all_of(files(tmp_path).usage(before(2))))] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "kind", "said"),
    [
        ("a.json", b"[", FetchError.PARTIAL_PAGE, "truncated"),
        ("a.json", b"x", FetchError.MALFORMED, "malformed"),
        ("a.json", b"\xff", FetchError.MALFORMED, "a.json"),
        ("a.json", [{**ROW, "start": "2026-09-14T11:00:00"}], FetchError.MALFORMED, "start"),
        ("a.json", [{**ROW, "input": -1}], FetchError.MALFORMED, "input"),
        ("a.json", [{**ROW, "input": "10"}], FetchError.MALFORMED, "input"),
        ("a.json", [{**ROW, "inputs": 1}], FetchError.MALFORMED, "inputs"),
        ("a.json", [{"start": ROW["start"], "input": 1}], FetchError.MALFORMED, "output"),
        (
            "a.json",
            [{**ROW, "end": (AT - MINUTE).isoformat()}],
            FetchError.MALFORMED,
            "row 1: ",
        ),
        ("a.json", [{**ROW, "cost": "NaN"}], FetchError.MALFORMED, "NaN"),
        (
            "a.json",
            {"costs": [{"start": ROW["start"], "end": ROW["start"], "amount": "1e99"}]},
            FetchError.MALFORMED,
            "1E\\+99",
        ),
        ("a.jsonl", json.dumps(ROW).encode() + b"\n{", FetchError.PARTIAL_PAGE, "line 2"),
        ("a.csv", b"start,input\n2026-09-14T11:00:00Z,1\n", FetchError.MALFORMED, "line 2: .*output"),
        ("a.csv", b"start,input,output\n2026-09-14T11:00:00Z,1.5,2\n", FetchError.MALFORMED, "line 2: .*input"),
        ("a.csv", b"start,input,output\n2026-09-14T11:00:00Z,-1,2\n", FetchError.MALFORMED, "line 2: .*input"),
        ("a.csv", b"start,input,output\nyesterday,1,2\n", FetchError.MALFORMED, "line 2: .*start"),
        ("a.csv", b"start,input,output\n2026-09-14T11:00:00Z,1\n", FetchError.MALFORMED, "line 2: "),
        ("a.csv", b"start,input,output\n2026-09-14T11:00:00Z,1,2,3\n", FetchError.MALFORMED, "line 2: "),
        (
            "a.csv",
            f"start,input,output\n2026-09-14T11:00:00Z,{9 * '9' * 999},2\n".encode(),
            FetchError.MALFORMED,
            "line 2",
        ),
        ("a.csv", b'start,input\n"2026', FetchError.MALFORMED, "CSV"),
        ("a.csv", b"\xff\xff", FetchError.MALFORMED, "UTF-8"),
    ],
)
def test_an_invalid_row_is_named_with_its_place(
    tmp_path: Path, name: str, content: object, kind: FetchError, said: str
) -> None:
    path = written(tmp_path / name, content)
    source = files(path)
    for ask in _questions(source):
        with pytest.raises(FetchFailed, match=said) as failed:
            all_of(ask())
        assert failed.value.kind is kind
        assert failed.value.at == NOW


def _questions(source: UsageSource) -> list[Callable[[], Any]]:
    return [lambda: source.usage(before(2)), lambda: source.calls(["r1"]), lambda: source.costs(before(2))]


@pytest.mark.parametrize("provider", ["files", "otel"])
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = failure_of(lambda: opened(provider, tmp_path / "none.json").usage(before(2)))
    assert failure.kind is FetchError.NOT_READY
    path = written(tmp_path / "one.json", [ROW])
    written(tmp_path / "two.json", [ROW])
    monkeypatch.setattr(folders, "MAX_FILES", 1)
    assert failure_of(lambda: opened(provider, tmp_path).usage(before(2))).kind is FetchError.PARTIAL_PAGE
    monkeypatch.setattr(folders, "MAX_BYTES", 10)
    assert failure_of(lambda: opened(provider, path).usage(before(2))).kind is FetchError.PARTIAL_PAGE
    for problem, kind in ((PermissionError(), FetchError.AUTH), (OSError(), FetchError.SERVER)):

        def refused(*_: object, error: OSError = problem) -> None:
            raise error

        monkeypatch.setattr(Path, "open", refused)
        failure = failure_of(lambda: opened(provider, path).usage(before(2)))
        assert failure.kind is kind
        assert failure.at == NOW
    assert os.fspath(path) in str(failure)


def attribute(key: str, value: object) -> dict[str, Any]:
    kind = "boolValue" if isinstance(value, bool) else "intValue" if isinstance(value, int) else "stringValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def span(name: str = "s1", at: Any = None, **attributes: object) -> dict[str, Any]:
    told = {"gen_ai.usage." + key.replace("__", "."): value for key, value in attributes.items()}
    plain = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-6", "gen_ai.response.id": f"resp-{name}"}
    return {
        "traceId": "t1",
        "spanId": name,
        "startTimeUnixNano": str(int(AT.timestamp()) * 10**9 + 250_000_123) if at is None else at,
        "attributes": [attribute(key, value) for key, value in {**plain, **told}.items()],
    }


def document(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", "agent"), {"key": "host.name"}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


USED = span(input_tokens=100, output_tokens=20, cache_read__input_tokens=60, reasoning__output_tokens=5)


def test_spans_are_calls_with_their_attributes(tmp_path: Path) -> None:
    conversation = {**USED, "attributes": [*USED["attributes"], attribute("gen_ai.conversation.id", "c1")]}
    answered = {
        **span("s2", input_tokens=1),
        "attributes": [
            attribute("gen_ai.response.model", "gpt-6-2026-01-01"),
            *span("s2", input_tokens=1)["attributes"],
        ],
    }
    path = written(tmp_path / "spans.json", document(conversation, answered))
    source = opened("otel", path)
    first, second = rows_of(all_of(source.usage(before(2))))
    assert first.tokens == Tokens(100, 20, 1, 60, None, 5)
    assert first.start == first.end == AT + timedelta(microseconds=250_000)
    assert (first.project, first.session, first.key, first.request_id) == ("agent", "c1", "", "resp-s1")
    assert (second.model, second.tokens, second.session) == ("gpt-6-2026-01-01", Tokens(1, 0, 1), "")
    assert rows_of(all_of(source.calls(["resp-s1"]))) == [first]
    assert rows_of(all_of(source.usage(Window(NOW, NOW + HOUR)))) == []
    assert all_of(source.costs(before(2))) == []
    assert source.kinds == {
        AttributionKind.PROJECT,
        AttributionKind.SESSION,
        AttributionKind.REQUESTS,
        AttributionKind.WINDOW,
    }


def test_lines_are_documents_and_what_was_sent_twice_counts_once(tmp_path: Path) -> None:
    lines = [document(USED), document(USED, span("s2", input_tokens=1, output_tokens=1)), {"resourceSpans": []}]
    written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)).encode())
    written(tmp_path / "b.jsonl", json.dumps(document(USED)).encode() + b"\n\n")
    assert sum_of(all_of(opened("otel", tmp_path).usage(before(2)))).total == 122


def test_spans_that_repeat_the_usage_of_others_are_left_out(tmp_path: Path) -> None:
    agent = span("agent", input_tokens=100, output_tokens=20)
    agent["attributes"][0] = attribute("gen_ai.operation.name", "invoke_agent")
    silent = span("silent")
    path = written(tmp_path / "spans.json", document(agent, USED, silent, {"spanId": "other"}))
    assert sum_of(all_of(opened("otel", path).usage(before(2)))).total == 120


def test_attribution_keys_come_from_the_configured_attributes(tmp_path: Path) -> None:
    path = written(
        tmp_path / "spans.json",
        document({**USED, "attributes": [*USED["attributes"], attribute("attribution_key", 7)]}),
    )
    source = opened("otel", path, key="attribution_key", project="", session="attribution_key")
    (row,) = rows_of(all_of(source.usage(before(2))))
    assert (row.key, row.project, row.session) == ("7", "", "7")
    assert source.kinds == {
        AttributionKind.KEY,
        AttributionKind.SESSION,
        AttributionKind.REQUESTS,
        AttributionKind.WINDOW,
    }


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", FetchError.PARTIAL_PAGE),
        (b"{\n" + json.dumps(document(USED)).encode(), FetchError.MALFORMED),
        ({"spans": []}, FetchError.MALFORMED),
        (document(span(input_tokens=-1, output_tokens=1)), FetchError.MALFORMED),
        (document(span(input_tokens="many")), FetchError.MALFORMED),
        (document(span(input_tokens=True)), FetchError.MALFORMED),
        (document(span(input_tokens=10**30)), FetchError.MALFORMED),
        (document(span(at="soon", input_tokens=1)), FetchError.MALFORMED),
        (document(span(at=0, input_tokens=1)), FetchError.MALFORMED),
        (document(span(at="9" * 30, input_tokens=1)), FetchError.MALFORMED),
        (document(USED, span(input_tokens=7)), FetchError.MALFORMED),
    ],
)
def test_an_invalid_span_is_named_with_its_place(tmp_path: Path, content: object, kind: FetchError) -> None:
    path = written(tmp_path / "spans.json", content)
    failure = failure_of(lambda: opened("otel", path).usage(before(2)))
    assert failure.kind is kind
    assert str(path) in str(failure)
