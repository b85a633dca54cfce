"""Log lines are JSON, of known fields, without what callers sent."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from meruit.api import app as build
from meruit.api.logging import MAX_FRAMES, MAX_TEXT, configure_logs, describe, log
from meruit.api.telemetry import Instruments
from meruit.errors import BodyError, CriteriaError, OutboundFailed, OutboundRefused, Problem
from meruit.model.access import Role
from meruit.model.events import Event, EventType

SECRET = "canary-1234"


class Lines:
    """What was logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def all(self) -> list[dict[str, Any]]:
        written = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        # Services that other tests of this process share tell of their events when they come to it.
        return [line for line in written if line["event"] != "event"]


@pytest.fixture
def lines() -> Iterator[Lines]:
    found = Lines()
    handler = configure_logs("info", found.stream)
    yield found
    logging.getLogger().removeHandler(handler)


def test_a_line_is_one_json_object(lines: Lines) -> None:
    log("request", method="GET", status=200, ms=1.5, role=Role.AGENT, tenant=None)
    (line,) = lines.all()
    moment = datetime.fromisoformat(line.pop("time"))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert line == {
        "level": "info", "event": "request", "method": "GET", "status": 200, "ms": 1.5, "role": "agent", "tenant": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["body", "authorization", "path", "secret", "payload", "url"])
def test_an_unknown_field_is_a_mistake_of_ours(lines: Lines, name: str) -> None:
    unknown: dict[str, Any] = {name: SECRET}
    with pytest.raises(TypeError, match=name):
        log("request", **unknown)
    assert lines.all() == []


def test_levels_are_honoured(lines: Lines) -> None:
    log("quiet", level="debug")
    log("loud", level="warning")
    assert [(line["event"], line["level"]) for line in lines.all()] == [("loud", "warning")]


def test_a_second_configuration_replaces_the_first(lines: Lines) -> None:
    again = io.StringIO()
    handler = configure_logs("error", again)
    try:
        log("silent")
        log("heard", level="error")
    finally:
        logging.getLogger().removeHandler(handler)
    assert lines.all() == []
    assert json.loads(again.getvalue())["event"] == "heard"


def test_lines_go_to_stderr_by_default() -> None:
    handler = configure_logs()
    try:
        assert isinstance(handler, logging.StreamHandler)
        assert handler.stream is sys.stderr
    finally:
        logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(SECRET), "ValueError"),
        (KeyError(SECRET), "KeyError"),
        (BodyError(SECRET), "BodyError"),
        (CriteriaError("c", [Problem("a", SECRET)]), "CriteriaError"),
        (ConnectionResetError(104, "reset"), "ConnectionResetError: [Errno 104] reset"),
        (OutboundFailed("h is silent"), "OutboundFailed: h is silent"),
        (OutboundRefused("h is private"), "OutboundRefused: h is private"),
        (RuntimeError("x" * 1000), f"RuntimeError: {'x' * (MAX_TEXT - 14)}"),
    ],
)
def test_only_safe_messages_are_logged(lines: Lines, error: Exception, said: str) -> None:
    assert describe(error) == said
    log("failed", error=error)
    # A service of an earlier test may still be saying goodbye.
    (line,) = [line for line in lines.all() if line["event"] == "failed"]
    assert line["error"] == said
    assert "at" not in line
    assert SECRET not in lines.stream.getvalue()


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError(SECRET)


def test_an_error_says_where_it_arose(lines: Lines) -> None:
    try:
        deep(20)
    except ValueError as error:
        log("failed", error=error)
    (line,) = lines.all()
    assert len(line["at"]) == MAX_FRAMES
    assert line["at"][-1].startswith("test_logging.py:")
    assert SECRET not in lines.stream.getvalue()


def test_odd_values_are_written_all_the_same(lines: Lines) -> None:
    log("odd", count=10**40, subject="\ud800", reason="y" * 1000, tenant=[SECRET])
    (line,) = lines.all()
    assert (line["count"], line["subject"], line["tenant"]) == (10**40, "\ud800", "list")
    assert len(line["reason"]) == MAX_TEXT
    assert SECRET not in lines.stream.getvalue()


def test_the_servers_records_keep_their_message(lines: Lines) -> None:
    try:
        deep(0)
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    (line,) = lines.all()
    assert (line["event"], line["level"], line["logger"]) == ("server", "error", "uvicorn.error")
    assert (line["message"], line["error"]) == ("Exception in ASGI application", "ValueError")
    assert line["at"]
    assert SECRET not in lines.stream.getvalue()


def test_other_libraries_records_lose_their_message(lines: Lines) -> None:
    logging.getLogger("asyncio").error("future: %s", SECRET)
    logging.getLogger("httpx").info("quiet")
    (line,) = lines.all()
    assert (line["event"], line["logger"]) == ("library", "asyncio")
    assert SECRET not in lines.stream.getvalue()


OURS = "run_" + "0a" * 17


@pytest.mark.parametrize("kind", EventType)
@pytest.mark.parametrize("named", [OURS, f"{OURS}.member", "what the host calls it"])
def test_every_event_is_logged_without_ids_of_clients(lines: Lines, kind: EventType, named: str) -> None:
    ids = ("outcome_id", "contract_id", "work_id", "task_run_id", "benchmark_run_id")
    data = {"run_id": named, **dict.fromkeys(ids)}
    event = Event("evt_of_this_test", str(kind), "1", "key", "2026-01-01T00:00:00Z", "meruit", "acme", data)
    build._log_events(Instruments(), [event])
    written = [json.loads(line) for line in lines.stream.getvalue().splitlines()]
    (line,) = [one for one in written if one.get("event_id") == "evt_of_this_test"]
    assert line["event_type"] == kind
    assert line.get("agent_run_id") in (None, OURS)
    assert "what the host" not in json.dumps(line)
