"""Recent events: what a process has committed itself is logged without reading it back."""

from hypothesis import given
from hypothesis import strategies as st

from meruit.events.recent_events import RecentEvents


def row(seq: int) -> tuple[object, ...]:
    return (seq, "acme", f"evt_{seq}", "outcome.recorded", "s", f"s:{seq}", seq, b"{}")


@given(st.sets(st.integers(1, 40)), st.integers(0, 41))
def test_events_come_without_a_gap(own: set[int], logged: int) -> None:
    recent = RecentEvents()
    recent.add([row(seq) for seq in sorted(own)])
    found = [one.seq for one in recent.take_after(logged)]
    expected: list[int] = []
    while logged + len(expected) + 1 in own:
        expected.append(logged + len(expected) + 1)
    assert found == expected
    assert recent.take_after(logged + len(found)) == []


def test_only_the_newest_are_kept() -> None:
    recent = RecentEvents(most=3)
    recent.add([row(seq) for seq in range(1, 6)])
    assert recent.take_after(1) == []
    assert [one.seq for one in recent.take_after(2)] == [3, 4, 5]


def test_an_event_is_as_its_row() -> None:
    recent = RecentEvents()
    recent.add([row(1)])
    (found,) = recent.take_after(0)
    assert (found.subject, found.event.event_id, found.event.tenant_id) == ("s", "evt_1", "acme")
    assert (found.event.event_type, found.event.idempotency_key) == ("outcome.recorded", "s:1")
