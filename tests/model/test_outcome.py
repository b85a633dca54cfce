"""Moments in records are exact, and every role has its scope."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from meruit.model.access import Caller, Role, Scope
from meruit.model.time import from_micros, to_micros, to_rfc3339

MOMENTS = st.datetimes(timezones=st.just(UTC))


@given(MOMENTS)
def test_a_moment_survives_being_kept(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@given(MOMENTS, st.integers(-12, 12))
def test_one_moment_has_one_text(moment: datetime, hours: int) -> None:
    moment = min(max(moment, datetime(1900, 1, 1, tzinfo=UTC)), datetime(2200, 1, 1, tzinfo=UTC))
    elsewhere = moment.astimezone(timezone(timedelta(hours=hours)))
    assert to_rfc3339(elsewhere) == to_rfc3339(moment)
    assert datetime.fromisoformat(to_rfc3339(moment)) == moment


def test_an_agent_reaches_its_own_outcomes_and_others_those_of_their_tenant() -> None:
    assert Caller("acme", Role.AGENT, "k", "heron").scope == Scope("acme", "heron", only_own=True)
    for role in (Role.OPERATOR, Role.AUDITOR, Role.ADMIN):
        assert Caller("acme", role, "k").scope == Scope("acme")
