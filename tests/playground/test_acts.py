"""What is kept of a playground's events with its run."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meruit.model.environment import SourceKind
from meruit.playground.events import MAX_ACTS, MAX_FACTS_BYTES, read_acts
from meruit.playground.seed import EVENT
from meruit.playground.state import PlaygroundState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[PlaygroundState]:
    with closing(PlaygroundState.create(tmp_path / "state.db", clock=lambda: NOON, settings={"secret": "s"})) as made:
        yield made


def test_acts_are_in_order_and_a_seed_brings_none(state: PlaygroundState) -> None:
    assert read_acts(state).acts == ()
    state.put(SourceKind.ROWS, "member/1", b"{}", event=EVENT)
    state.put(SourceKind.ROWS, "member/2", b"{}", event="row")
    state.log("login", {"user": "clerk"})
    found = read_acts(state)
    assert [(one.type, one.system, one.key, one.facts.get("user")) for one in found.acts] == [
        ("row", "rows", "member/2", None),
        ("login", None, None, "clerk"),
    ]
    assert (found.more, found.trouble) == (False, "")


@pytest.mark.parametrize("facts", [{"body": "x" * MAX_FACTS_BYTES}, {"name": "\ud800"}])
def test_facts_that_are_long_or_not_text_are_left_out(state: PlaygroundState, facts: dict[str, str]) -> None:
    state.log("login", facts)
    assert [(one.type, one.facts) for one in read_acts(state).acts] == [("login", {})]


@pytest.mark.parametrize(("number", "more"), [(MAX_ACTS, False), (MAX_ACTS + 1, True)])
def test_the_first_acts_are_kept(state: PlaygroundState, number: int, more: bool) -> None:
    for at in range(number):
        state.log("step", {"number": at})
    found = read_acts(state)
    assert (len(found.acts), found.acts[-1].facts["number"], found.more) == (MAX_ACTS, MAX_ACTS - 1, more)
