"""The timeline of a run: answers, tools, waits and submissions in the order in which they happened."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from meruit.gate.records import QueueRun, count_by_status, find
from meruit.gate.run import RunRequest, RunState
from meruit.gate.state import VerdictGiven
from meruit.gate.store.runs import WAIT
from meruit.gate.store.submissions import Submit
from meruit.gate.timeline import TimelineKind, load_timeline
from meruit.gate.verdict import Acceptance, Rejection
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

TENANT, RUN = "acme", "run_1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(Location(tmp_path))
    yield made
    made.close()


def record_step(store: Store, key: str, body: bytes) -> None:
    def write(writing: WriteTransaction) -> None:
        writing.insert(tables.agent_steps, tenant=TENANT, run_id=RUN, key=key, at=writing.now.micros, body=body)

    store.recorder.write(write)


def test_everything_is_in_order_with_candidates_and_names_of_tools(store: Store) -> None:
    queue = QueueRun(TENANT, "me", RUN, "robot", RunRequest("query"), owner="us")
    first = VerdictGiven("1:call", "0" * 64, Rejection("too short", "short"), 0.0)
    second = VerdictGiven("3:call", "1" * 64, Acceptance({"ok": True}), 0.0)
    call = ToolCall("c", "look_up", "{}")
    record_step(store, "turn:1", ModelAnswer("thinking", (call,), Usage(10, 5, requests=1)).to_json())
    record_step(store, "tool:1.0", msgspec.json.encode({"reply": "which one?", "waits": True}))
    record_step(store, f"{WAIT}1.0", b'"the first"')
    store.recorder.write(Submit(TENANT, RUN, first, b"0" * 16, "us", 1, b'{"text":"a"}', open=queue))
    record_step(store, "tool:strange", b"{}")
    store.recorder.write(Submit(TENANT, RUN, second, b"1" * 16, "us", 3, b'{"text":"a b"}'))
    with store.database.reading() as connection:
        run = find(connection, TENANT, RUN)
        found = load_timeline(connection, TENANT, run)
        counts = count_by_status(connection, TENANT)
        assert count_by_status(connection, TENANT, "another") == {}
    kinds = [one.kind for one in found]
    assert kinds == [
        *(TimelineKind.ANSWER, TimelineKind.TOOL, TimelineKind.WAIT),
        *(TimelineKind.SUBMISSION, TimelineKind.TOOL, TimelineKind.SUBMISSION),
    ]
    assert (found[0].text, found[0].calls, found[0].usage) == ("thinking", (call,), Usage(10, 5, requests=1))
    assert (found[1].name, found[1].text, found[1].waits) == ("look_up", "which one?", True)
    assert found[2].text == '"the first"'
    assert (found[3].candidate, found[3].before, found[3].said) == (
        {"text": "a"},
        None,
        Rejection("too short", "short"),
    )
    assert (found[4].name, found[4].turn) == ("tool", 0)
    assert (found[5].before, found[5].candidate) == ({"text": "a"}, {"text": "a b"})
    assert sum(counts.values()) == 1
    assert set(counts) <= set(RunState)
