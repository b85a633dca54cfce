"""What holds of runs whose tokens are counted, whatever database they are on."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from tests.events.emitting import Clock
from tests.outcomes.making import together
from tests.sampling import sample
from tests.usage.metering import BEGUN, BY_CALLS, ENDED, POLICY, USED, Place, attempt, metered

from meruit.errors import (
    FetchError,
    IdempotencyConflict,
    InvalidUsage,
    MeruitError,
    NotFound,
    NothingToAcknowledge,
    PriceAlreadyFrozen,
    StoreError,
    UsageRunEnded,
)
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    MeteredCall,
    MeteredStep,
    PriceQuote,
    RunCosts,
    UsageRecord,
    Window,
)
from meruit.model.time import to_micros
from meruit.model.usage import Acknowledgement, Observation, Tokens, UsageCode, UsagePolicy, UsageStatus
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest, IdempotentWrite
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import ClockAndEntropy, Store
from meruit.store.transaction import WriteTransaction
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.decision import decide, is_equal
from meruit.usage.files import mark_imported
from meruit.usage.schedule import Schedule
from meruit.usage.store import read as usage_reading
from meruit.usage.store.accounts import (
    AcquireAccountLease,
    ChangeCredential,
    ReleaseAccountLease,
    StoredFetch,
    StorePages,
    find_fetch,
)
from meruit.usage.store.acknowledge import Acknowledge
from meruit.usage.store.observe_now import ObserveNow
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_prices import RecordPrices
from meruit.usage.store.record_runs import RecordRun, RecordRuns
from meruit.usage.store.rows import MAX_TOTAL_TOKENS

MORE, LESS, NONE = Tokens(20, 5), Tokens(8, 5), Tokens(0, 0)
_NUMBERS = count()


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Location:
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    return Location(tmp_path_factory.mktemp("usage"), url)


@pytest.fixture(scope="module")
def store(location: Location, clock: Clock) -> Iterator[Store]:
    """One of each kind; every test is a tenant of its own."""
    opened = Store.open(location, ClockAndEntropy(clock=clock))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def second(location: Location, store: Store, clock: Clock) -> Iterator[Store]:
    """Another process at the same database."""
    opened = Store.open(location, ClockAndEntropy(clock=clock))
    yield opened
    opened.close()


@pytest.fixture
def here(store: Store) -> Place:
    return Place(store, f"usage-{next(_NUMBERS)}")


@pytest.fixture
def asked_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What writes ask the database."""
    asked: list[str] = []
    for question in ("fetch", "ask", "read"):
        real = getattr(WriteTransaction, question)

        def counted(self: WriteTransaction, statement: Any, *values: Any, real: Any = real) -> Any:
            # Services that other tests of this process share look for contracts whose time is over.
            if "FROM contracts" not in str(statement):
                asked.append(str(statement))
            return real(self, statement, *values)

        monkeypatch.setattr(WriteTransaction, question, counted)
    return asked


def ack(reason: str = "it is right", minutes: float = 200) -> Acknowledgement:
    return Acknowledgement(ENDED + timedelta(minutes=minutes), "ann", reason)


# Whatever happens, what is claimed follows from what is kept

MINUTES = (-3, 0, 10, 59, 60, 61, 130, 200, 1500)
RUNS = ("r", "q")
attempts = st.one_of(
    st.builds(attempt, st.sampled_from(MINUTES), st.sampled_from([USED, USED, MORE, LESS, NONE, FetchError.AUTH])),
    st.builds(attempt, st.sampled_from(MINUTES), st.sampled_from([USED, MORE]), st.just("one name")),
)
looks = st.tuples(st.just("look"), st.lists(st.tuples(st.sampled_from(RUNS), attempts), min_size=1, max_size=4))
records = st.tuples(st.just("record"), st.tuples(st.sampled_from(RUNS), st.integers(0, 2), st.booleans()))
others = st.tuples(st.sampled_from(["acknowledge", "now", "price"]), st.sampled_from(RUNS))
groups = st.lists(st.one_of(records, looks, looks, looks, others), min_size=1, max_size=3)


def asked(here: Place, what: str, about: Any) -> Any:
    match what:
        case "look":
            return RecordObservations(here.tenant, [RunObservation(*one) for one in about])
        case "record":
            run_id, steps, ended = about
            return here.record(run_id, steps=steps, **({} if ended else {"ended_at": None}))
        case "acknowledge":
            return Acknowledge(here.tenant, about, ack(minutes=300))
        case "now":
            return ObserveNow(here.tenant, [about])
        case _:
            return RecordPrices(here.tenant, about, ledger=RunCosts(quoted=Decimal("0.1")))


@settings(max_examples=25)
@given(together_at=st.lists(groups, max_size=6), ends=st.booleans())
def test_the_status_always_follows_from_all_observations(
    store: Store, together_at: list[list[tuple[str, Any]]], ends: bool
) -> None:
    here = Place(store, f"usage-{next(_NUMBERS)}")
    for run_id in RUNS:
        here.write(here.record(run_id, **({} if ends else {"ended_at": None})))
    given_looks: dict[str, list[Observation]] = {one: [] for one in RUNS}
    numbers = dict.fromkeys(RUNS, 0)
    for group in together_at:
        answers = together(store, [asked(here, *one) for one in group])
        assert [one for one in answers if isinstance(one, Exception) and not isinstance(one, MeruitError)] == []
        for what, about in group:
            for run_id, look in about if what == "look" else ():
                given_looks[run_id].append(look)
        for run_id in RUNS:
            record = here.check(run_id)
            assert record.attempts >= numbers[run_id]
            numbers[run_id] = record.attempts
    for run_id in RUNS:
        kept = here.attempts(run_id)
        assert all(kept.count(one) == 1 for one in kept)
        assert [one for one in given_looks[run_id] if one not in kept and not needless(one, kept)] == []


def needless(look: Observation, kept: Sequence[Observation]) -> bool:
    """Whether a look that is not kept said what another one had said within the hour before it."""
    return any(
        is_equal(one, look) and one.error is None and timedelta() <= look.at - one.at < POLICY.interval for one in kept
    )


@settings(max_examples=10)
@given(
    found=st.lists(st.tuples(st.sampled_from(RUNS), attempts), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_two_reconcilers_neither_lose_nor_double_an_observation(
    store: Store, second: Store, found: list[tuple[str, Observation]], order: Any
) -> None:
    here = Place(store, f"usage-{next(_NUMBERS)}")
    here.write(RecordRuns(here.tenant, "me", [here.metered(one) for one in RUNS]))
    mine, theirs = [*found], [*found]
    order.shuffle(theirs)

    def reconcile(of: Store, looks: Sequence[tuple[str, Observation]]) -> None:
        for first in range(0, len(looks), 3):
            of.recorder.write(
                RecordObservations(here.tenant, [RunObservation(*one) for one in looks[first : first + 3]])
            )

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(reconcile, store, mine), threads.submit(reconcile, second, theirs)]:
            done.result()
    for run_id in RUNS:
        here.check(run_id)
        kept = here.attempts(run_id)
        assert all(kept.count(one) == 1 for one in kept)
        assert [look for one, look in found if one == run_id and look not in kept and not needless(look, kept)] == []


# Recording


def test_a_run_is_recorded_with_what_is_known_of_it(here: Place, clock: Clock) -> None:
    record = here.write(here.record(task="t"))
    assert record == here.check()
    assert (record.run, record.attempts) == (here.metered(task="t"), 0)
    assert (record.verdict.status, record.verdict.code) == (UsageStatus.PENDING, UsageCode.NOT_STARTED)
    assert record.next_observation_at == ENDED + timedelta(minutes=10)
    row = here.row()
    assert (row.account, row.attribution_kind, row.attribution_key, row.task) == ("main", "key", here.tenant, "t")
    assert (row.created_at, row.created_by) == (clock.micros, "me")
    assert here.types() == ["usage_run.recorded", "usage_run.ended"]
    assert here.told()[0][1] == {
        "run_id": "r", "status": "pending", "code": "not_started", "attempts": 0, "withdrawn": 0, "imported": False
    }  # fmt: skip


def test_an_open_run_is_replaced_whole_until_it_ends(here: Place) -> None:
    first = here.write(here.record(steps=0, ended_at=None))
    assert (first.verdict.code, first.next_observation_at) == (UsageCode.RUN_OPEN, None)
    here.write(here.record(steps=2, ended_at=None))
    assert len(here.check().run.steps) == 2
    moved = here.write(here.record(steps=1, source="other", ended_at=None))
    assert (here.row().account, len(moved.run.steps)) == ("other", 1)
    last = here.write(here.record(steps=3))
    assert (last.seq, len(here.check().run.steps), here.row().account) == (first.seq, 3, "main")
    assert last.next_observation_at == ENDED + timedelta(minutes=10)
    assert here.types() == ["usage_run.recorded", "usage_run.ended"]


def test_an_open_run_of_one_agent_does_not_become_anothers(here: Place) -> None:
    kept = here.write(here.record(ended_at=None))
    taken = here.record(framework="another", ended_at=None)
    with pytest.raises(InvalidUsage, match="'another'"):
        here.write(taken)
    assert here.found() == kept


def test_a_run_that_has_ended_is_what_it_is(here: Place) -> None:
    here.write(here.record())
    here.looked(attempt(10))
    again = here.write(here.record())
    assert again == here.found()
    for other in ({"steps": 2}, {"ended_at": None}, {"ended_at": ENDED + timedelta(seconds=1)}, {"success": True}):
        with pytest.raises(UsageRunEnded, match="2026-05-04T03:05"):
            here.write(here.record(**other))
    assert here.check() == again
    assert len(here.types()) == 2


def test_a_run_that_ends_late_is_judged_by_observations_since_then(here: Place) -> None:
    here.write(here.record(ended_at=None))
    before = here.looked(attempt(-3), attempt(10), attempt(70))
    assert (before.verdict.code, before.attempts, before.next_observation_at) == (UsageCode.RUN_OPEN, 3, None)
    assert here.write(here.record()).verdict.status is UsageStatus.VERIFIED
    here.check()
    assert here.types() == ["usage_run.recorded", "usage_run.ended", "usage.verified"]
    assert [(one.status, one.attempts) for one in here.logged()] == [("verified", 3)]


def test_concurrent_records_of_one_run_make_one_run(here: Place, second: Store) -> None:
    writes = [here.record() for _ in range(4)]
    answers = together(here.store, writes)
    assert answers == [answers[0]] * 4
    there = here._replace(store=second)
    with ThreadPoolExecutor(4) as threads:
        states = [here.record("x", steps=number, ended_at=None) for number in range(4)]
        done = [threads.submit((here, there)[number % 2].write, one) for number, one in enumerate(states)]
        assert {one.result().seq for one in done} == {here.found("x").seq}
    assert here.check("x").run in [one.run for one in states]
    assert here.types("x") == ["usage_run.recorded"]


def test_callers_of_one_group_see_what_those_before_them_did(here: Place) -> None:
    answers = together(
        here.store,
        [
            here.record(ended_at=None),
            here.record(steps=2, ended_at=None),
            here.record(),
            here.look(attempt(10)),
            here.record(steps=3),
            here.look(attempt(10), attempt(70)),
            RecordPrices(here.tenant, "r", ledger=RunCosts(quoted=Decimal("0.1"))),
            here.look(attempt(80, MORE)),
            RecordPrices(here.tenant, "r", ledger=RunCosts(billed=Decimal("0.2"))),
            ObserveNow(here.tenant, ["r"]),
        ],
    )
    assert isinstance(answers[4], UsageRunEnded)
    record = here.check()
    assert answers[-1] == [record]
    assert (record.attempts, record.ledger) == (3, RunCosts(Decimal("0.1"), Decimal("0.2")))
    assert here.types()[-2:] == ["usage.verified", "usage.withdrawn"]


def test_a_request_that_comes_twice_is_answered_once(here: Place) -> None:
    def record(fingerprint: str = "fingerprint") -> Write[Any]:
        request = IdempotentRequest("key", fingerprint, 201)
        return IdempotentWrite(here.tenant, request, here.record(), lambda record: record.run.id.encode())

    assert isinstance(here.write(record()), UsageRecord)
    assert here.write(record()) == IdempotentReplay(201, b"r")
    with pytest.raises(IdempotencyConflict):
        here.write(record("another"))


def test_many_runs_are_recorded_together_or_not_at_all(here: Place) -> None:
    runs = [here.metered(f"r{number}") for number in range(600)]
    assert [one.run for one in here.write(RecordRuns(here.tenant, "me", runs))] == runs
    with pytest.raises(InvalidUsage):
        here.write(RecordRuns(here.tenant, "me", [here.metered("new"), here.metered("")]))
    with pytest.raises(NotFound):
        here.found("new")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"run_id": ""}, "length >= 1"),
    "a long name": ({"framework": "f" * 201}, "length <= 200"),
    "a time without its zone": ({"ended_at": datetime(2026, 5, 4)}, "timezone"),  # noqa: DTZ001 - that is wrong
    "a time before there were computers": ({"started_at": ENDED.replace(year=1900)}, "1900"),
    "a time that nobody lives to see": ({"ended_at": ENDED.replace(year=9999)}, "9999"),
    "an end before the beginning": ({"started_at": ENDED + timedelta(seconds=1)}, "ends before"),
    "negative tokens": ({"steps": (MeteredStep("s", tokens=Tokens(-1, 0)),)}, ">= 0"),
    "two steps of one name": ({"steps": (MeteredStep("s"), MeteredStep("s"))}, "'s'"),
    "a null character": ({"task": "a\0b"}, "null character"),
    "half a character": ({"framework": "\ud800"}, "run 'r'"),
    "a score that is none": ({"score": 2.0}, "<= 1"),
    "what is no time": ({"ended_at": object()}, "unsupported"),
    "a key without its id": (
        {"attribution_key": AttributionKey(AttributionKind.KEY)},
        "key:ID",
    ),
    "a project without its id": ({"attribution_key": AttributionKey(AttributionKind.PROJECT)}, "project:ID"),
    "a session of spaces": ({"attribution_key": AttributionKey(AttributionKind.SESSION, " ")}, "session:ID"),
    "a secret for an attribution key": (
        {"attribution_key": AttributionKey(AttributionKind.KEY, "sk-abc")},
        "secret",
    ),
    "a value for calls": (
        {"attribution_key": AttributionKey(AttributionKind.REQUESTS, "x")},
        "requests",
    ),
    "a value for time alone": (
        {"attribution_key": AttributionKey(AttributionKind.WINDOW, "x")},
        "window",
    ),
    "a step that ends before it starts": ({"steps": (MeteredStep("s", ENDED, BEGUN),)}, "step 's'"),
    "a null character in a call": (
        {"attribution_key": BY_CALLS, "steps": (MeteredStep("s", calls=(MeteredCall(BEGUN, id="a\0b"),)),)},
        "null character",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_an_invalid_run_is_refused_and_nothing_is_lost(here: Place, what: str) -> None:
    wrong, said = BAD[what]
    here.write(here.record("other"))
    with pytest.raises(InvalidUsage, match=said):
        here.write(here.record(**{"run_id": "r", **wrong}))
    with pytest.raises(NotFound, match="'r'"):
        here.found()
    here.check("other")


# Calls: each is one run's


def test_a_call_belongs_to_one_run(here: Place, new_tenant: Callable[[], str]) -> None:
    there = Place(here.store, new_tenant())
    account = {"source": here.tenant}
    here.write(here.called("r", "gen-1", "gen-2", **account))
    assert here.write(here.called("r", "gen-1", "gen-2", **account)) == here.found()
    for other in (here, there):
        write = other.called("q", "gen-3", "gen-2", **account)
        with pytest.raises(InvalidUsage, match="call 'gen-2'") as told:
            other.write(msgspec.structs.replace(write, sharers=(here.tenant, there.tenant)))
        assert "'r'" not in str(told.value)
        with pytest.raises(NotFound):
            other.found("q")
    # Another account has calls of its own, and who is told by a key is not told by calls.
    there.write(there.called("q", "gen-1", source=there.tenant))
    there.write(there.called("x", "gen-1", attribution_key=AttributionKey(AttributionKind.KEY, "k"), **account))
    there.write(there.called("y", "gen-3", "", **account))
    there.write(there.called("z", "", **account))
    # Without sharing, another tenant's calls are its own.
    there.write(there.called("own", "gen-2", **account))


def test_an_open_run_has_the_calls_that_it_names_by_now(here: Place) -> None:
    account: dict[str, Any] = {"source": here.tenant, "ended_at": None}
    here.write(here.called("r", "a", "b", **account))
    here.write(here.called("r", "b", "c", **account))
    here.write(here.called("q", "a", **account))
    for taken in ("b", "c"):
        with pytest.raises(InvalidUsage, match=f"call '{taken}'"):
            here.write(here.called("x", taken, **account))
    with pytest.raises(InvalidUsage, match="call 'a'"):
        here.write(here.called("r", "a", "b", **account))
    assert len(here.check("r").run.calls) == 2
    here.write(here.called("r", "b", "c", **{**account, "attribution_key": AttributionKey(AttributionKind.KEY, "k")}))
    here.write(here.called("x", "b", "c", **account))


@settings(max_examples=15)
@given(
    told=st.lists(
        st.lists(st.tuples(st.sampled_from("rqx"), st.sets(st.sampled_from("abcd"))), min_size=1, max_size=4),
        max_size=4,
    )
)
def test_no_call_is_ever_two_runs(store: Store, told: list[list[tuple[str, set[str]]]]) -> None:
    here = Place(store, f"usage-{next(_NUMBERS)}")
    names: dict[str, set[str]] = {}
    for group in told:
        writes = [here.called(run_id, *sorted(calls), source=here.tenant, ended_at=None) for run_id, calls in group]
        for (run_id, calls), answer in zip(group, together(store, writes), strict=True):
            others = set().union(*(names[one] for one in names if one != run_id))
            assert isinstance(answer, InvalidUsage) == bool(calls & others)
            if isinstance(answer, UsageRecord):
                names[run_id] = calls
    for run_id, calls in names.items():
        assert {one.id for one in here.found(run_id).run.calls} == calls


def test_calls_of_many_runs_are_asked_for_together(here: Place, asked_of: list[str]) -> None:
    runs = [here.called(f"r{number}", f"{number}", f"{number}b", source=here.tenant).run for number in range(600)]
    here.write(RecordRuns(here.tenant, "me", runs))
    # Two blocks of runs, three of calls, and who is told by time alone.
    assert len(asked_of) == 6
    twice = [here.called("new", "x", source=here.tenant).run, here.called("newer", "x", source=here.tenant).run]
    with pytest.raises(InvalidUsage, match="run 'newer': call 'x'"):
        here.write(RecordRuns(here.tenant, "me", twice))
    with pytest.raises(NotFound):
        here.found("new")


# Runs that are counted together


def settled(place: Place, run_id: str = "r", **more: Any) -> None:
    """A run that is verified, and due again after a day."""
    place.write(place.record(run_id, **more))
    assert place.looked(attempt(10), attempt(70), run_id=run_id).next_observation_at == ENDED + timedelta(days=1)


def is_due(place: Place, clock: Clock, run_id: str = "r") -> bool:
    return place.found(run_id).next_observation_at == clock.now


LATE: dict[str, tuple[dict[str, Any], bool]] = {
    "the same minutes": ({}, True),
    "just before": ({"started_at": None, "ended_at": BEGUN - timedelta(minutes=5)}, True),
    "long before": ({"started_at": None, "ended_at": BEGUN - timedelta(minutes=5, seconds=1)}, False),
    "just after": ({"started_at": ENDED + timedelta(minutes=5), "ended_at": ENDED + timedelta(days=20)}, True),
    "long after": ({"started_at": ENDED + timedelta(minutes=6), "ended_at": ENDED + timedelta(days=20)}, False),
    "all around": ({"started_at": BEGUN - timedelta(days=9), "ended_at": ENDED + timedelta(days=9)}, True),
    "still open": ({"ended_at": None}, True),
    "opened after": ({"started_at": ENDED + timedelta(minutes=6), "ended_at": None}, False),
    "opened, nobody knows when": ({"started_at": None, "ended_at": None}, False),
    "another key": ({"attribution_key": AttributionKey(AttributionKind.KEY, "its own")}, False),
    "another kind": ({"attribution_key": AttributionKey(AttributionKind.SESSION, "k")}, False),
    "by time alone": ({"attribution_key": AttributionKey()}, False),
    "by calls": ({"attribution_key": BY_CALLS}, False),
    "another account": ({"source": "another"}, False),
}


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("late", LATE)
def test_a_run_recorded_late_makes_its_cohort_due(
    here: Place, new_tenant: Callable[[], str], clock: Clock, late: str, bulk: bool
) -> None:
    there = Place(here.store, new_tenant())
    more, disturbs = LATE[late]
    attribution_key: dict[str, Any] = {
        "source": here.tenant,
        "attribution_key": AttributionKey(AttributionKind.KEY, "k"),
    }
    settled(here, **attribution_key)
    run, both = there.metered("late", **{**attribution_key, **more}), (here.tenant, there.tenant)
    alone = there.metered("alone", **{**attribution_key, **more})
    there.write(RecordRun(there.tenant, "me", alone) if not bulk else RecordRuns(there.tenant, "me", [alone]))
    # What a tenant records changes nothing for another, unless they share the account.
    assert not is_due(here, clock)
    sharing = {run.source: both}
    there.write(
        RecordRuns(there.tenant, "me", [run], sharing=sharing)
        if bulk
        else RecordRun(there.tenant, "me", run, sharers=both)
    )
    assert is_due(here, clock) == disturbs
    assert here.check().verdict.status is UsageStatus.VERIFIED


minutes_of = st.tuples(st.integers(0, 60), st.integers(0, 9))


@settings(max_examples=10)
@given(
    stood=st.lists(minutes_of, min_size=1, max_size=5),
    late=st.lists(st.tuples(minutes_of, st.booleans()), max_size=3),
    bulk=st.booleans(),
)
@example(stood=[(30, 1)], late=[((0, 1), True), ((60, 1), True)], bulk=True)
def test_runs_recorded_late_make_only_runs_within_five_minutes_due(
    store: Store, clock: Clock, stood: list[tuple[int, int]], late: list[tuple[tuple[int, int], bool]], bulk: bool
) -> None:
    here = Place(store, f"usage-{next(_NUMBERS)}")

    def lasted(start: int, length: int, *, ended: bool = True) -> dict[str, Any]:
        begun = BEGUN + timedelta(minutes=start)
        return {"started_at": begun, "ended_at": begun + timedelta(minutes=length) if ended else None}

    here.write(RecordRuns(here.tenant, "me", [here.metered(f"{n}", **lasted(*one)) for n, one in enumerate(stood)]))
    here.write(
        RecordObservations(
            here.tenant, [RunObservation(f"{n}", attempt(at)) for n, _ in enumerate(stood) for at in (200, 270)]
        )
    )
    runs = [here.metered(f"late{n}", **lasted(*one, ended=ended)) for n, (one, ended) in enumerate(late)]
    if bulk:
        here.write(RecordRuns(here.tenant, "me", runs))
    else:
        together(store, [RecordRun(here.tenant, "me", one) for one in runs])
    for number, (start, length) in enumerate(stood):
        near = [one <= start + length + 5 and (not ended or one + more >= start - 5) for (one, more), ended in late]
        assert is_due(here, clock, f"{number}") == any(near)


def test_a_run_attributed_by_time_makes_all_runs_due(here: Place, clock: Clock) -> None:
    account = {"source": here.tenant}
    attribution_keys = (AttributionKey(), BY_CALLS, AttributionKey(AttributionKind.KEY, "k"))
    for number, attribution_key in enumerate(attribution_keys):
        settled(here, f"w{number}", attribution_key=AttributionKey(), **account)
        here.write(here.record(f"late{number}", attribution_key=attribution_key, **account))
        assert is_due(here, clock, f"w{number}")


def test_a_run_disturbs_when_it_opens_when_it_ends_and_when_it_moves_and_not_in_between(
    here: Place, clock: Clock
) -> None:
    settled(here)
    account: dict[str, Any] = {"source": "main", "started_at": BEGUN}

    def disturbs(**more: Any) -> bool:
        here.write(here.look(attempt(1440 + here.found().attempts)))
        assert not is_due(here, clock)
        here.write(here.record("late", **{**account, **more}))
        return is_due(here, clock)

    assert disturbs(ended_at=None)
    assert not disturbs(ended_at=None, steps=2)
    assert not disturbs(ended_at=None, attribution_key=AttributionKey(AttributionKind.KEY, "elsewhere"))
    assert disturbs(ended_at=None)
    assert not disturbs(ended_at=None, started_at=ENDED + timedelta(hours=1))
    assert disturbs(ended_at=None)
    assert disturbs()
    assert not disturbs()


def test_runs_without_observations_keep_their_time(here: Place) -> None:
    here.write(RecordRuns(here.tenant, "me", [here.metered(one) for one in "abc"]))
    here.write(here.record("d"))
    assert {here.found(one).next_observation_at for one in "abcd"} == {ENDED + timedelta(minutes=10)}


def test_observed_neighbours_do_not_make_each_other_due(here: Place, clock: Clock) -> None:
    here.write(RecordRuns(here.tenant, "me", [here.metered("a"), here.metered("b")]))
    for minutes in (10, 70):
        here.write(RecordObservations(here.tenant, [RunObservation(one, attempt(minutes)) for one in "ab"]))
    assert not any(is_due(here, clock, one) for one in "ab")


def test_a_run_verified_in_the_same_group_is_made_due_too(here: Place, clock: Clock) -> None:
    here.write(RecordRuns(here.tenant, "me", [here.metered("a"), here.metered("b")]))
    here.looked(attempt(10), run_id="a")
    here.looked(attempt(10), run_id="b")
    together(here.store, [here.record("first"), here.look(attempt(70), run_id="a"), here.record("second")])
    assert [is_due(here, clock, one) for one in "ab"] == [True, True]
    assert here.check("a").verdict.status is UsageStatus.VERIFIED


def test_a_run_that_waits_for_a_key_is_asked_for_again(here: Place, clock: Clock) -> None:
    here.write(here.record())
    assert here.looked(attempt(10, FetchError.AUTH)).waits == "credential"
    here.write(here.record("late"))
    assert (here.found().next_observation_at, here.found().waits) == (clock.now, "")


# Looking


def test_two_equal_observations_an_hour_apart_verify(here: Place) -> None:
    here.write(here.record())
    first = here.looked(attempt(10))
    assert (first.verdict.code, first.next_observation_at) == (UsageCode.FIRST, ENDED + timedelta(minutes=70))
    assert here.types() == ["usage_run.recorded", "usage_run.ended"]
    last = here.looked(attempt(70))
    assert last.verdict.status is UsageStatus.VERIFIED
    assert last == here.check()
    assert last.next_observation_at == ENDED + timedelta(days=1)
    assert here.told()[-1] == (
        "usage.verified", {
            "run_id": "r", "status": "verified", "code": "stable", "attempts": 2, "withdrawn": 0, "imported": False
        }
    )  # fmt: skip
    [entry] = here.logged()
    assert (entry.tenant, entry.run, entry.status, entry.code) == (here.tenant, "r", "verified", "stable")
    assert (entry.attempts, entry.by, entry.reason) == (2, "", "")


def test_an_early_equal_observation_changes_only_the_times(here: Place) -> None:
    here.write(here.record())
    here.looked(attempt(10))
    early = here.looked(attempt(30), attempt(69.9))
    assert (early.attempts, early.verdict.early, early.verdict.code) == (3, 2, UsageCode.FIRST)
    assert early.last_observation_at == ENDED + timedelta(minutes=69.9)
    assert early.next_observation_at == ENDED + timedelta(minutes=70)
    assert here.looked(attempt(70)).verdict.status is UsageStatus.VERIFIED


def test_an_early_observation_is_due_again_when_it_would_count(here: Place) -> None:
    here.write(here.record(steps=0))
    here.looked(attempt(1370), attempt(1435))
    waiting = here.looked(attempt(1440))
    assert (waiting.verdict.code, waiting.attempts, waiting.verdict.early) == (UsageCode.INCOMPLETE, 3, 1)
    assert waiting.next_observation_at == ENDED + timedelta(minutes=1435 + 60)


def test_a_provider_whose_clock_is_far_behind_is_not_asked_all_the_time(here: Place, clock: Clock) -> None:
    here.write(here.record(started_at=None, ended_at=BEGUN - timedelta(days=1)))
    behind = [msgspec.structs.replace(attempt(10), id=f"{n}", at=BEGUN + timedelta(minutes=n - 900)) for n in (0, 1)]
    here.looked(behind[0])
    waiting = here.looked(behind[1])
    assert (waiting.verdict.early, waiting.next_observation_at) == (1, clock.now + timedelta(hours=1))


def test_an_early_observation_shows_that_a_key_works_again(here: Place) -> None:
    here.write(here.record())
    refused = here.looked(attempt(10), attempt(20, FetchError.AUTH))
    assert (refused.next_observation_at, refused.waits) == (None, "credential")
    works = here.looked(attempt(30))
    assert (works.attempts, works.next_observation_at, works.waits) == (3, ENDED + timedelta(minutes=70), "")
    assert (works.verdict.early, works.verdict.held) == (1, False)


@pytest.mark.parametrize("first", [1, 1_000], ids=["folded", "all read"])
def test_early_observations_are_kept_once_each_and_not_without_end(
    here: Place, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr("meruit.usage.progress.FOLD_FROM", first)
    monkeypatch.setattr("meruit.usage.store.record_observations.MAX_EARLY", 2)
    here.write(here.record())
    here.looked(attempt(10), attempt(30), attempt(30), attempt(40))
    several = here.looked(attempt(30), attempt(50))
    assert (several.attempts, several.verdict.early) == (3, 2)
    assert several.last_observation_at == ENDED + timedelta(minutes=50)
    assert here.looked(attempt(70)).verdict.status is UsageStatus.VERIFIED


@pytest.mark.parametrize("minutes", [(0, 30, 60), (0, 60), (0, 30, 90), (0, 10, 20, 30, 95), (0, 60, 90), (0,)])
def test_recording_a_file_and_judging_it_give_the_same_verdict(here: Place, minutes: tuple[int, ...]) -> None:
    record = here.write(here.record())
    looks = [mark_imported(attempt(one)) for one in minutes]
    recorded = here.looked(*looks)
    assert recorded.verdict == decide(record.run.for_judging, looks)
    assert recorded.attempts == len(minutes)


def test_the_next_check_of_imported_data_counts_from_the_data(here: Place, clock: Clock) -> None:
    long_ago = clock.now - timedelta(days=3)
    here.write(here.record(started_at=None, ended_at=long_ago))
    looks = [
        msgspec.structs.replace(mark_imported(attempt(10)), id=f"{n}", at=long_ago + timedelta(minutes=n))
        for n in (10, 40)
    ]
    pending = here.looked(*looks)
    assert (pending.verdict.status, pending.next_observation_at) == (
        UsageStatus.PENDING,
        long_ago + timedelta(minutes=100),
    )


def test_a_late_observation_counts_at_its_own_time(here: Place) -> None:
    here.write(here.record())
    assert here.looked(attempt(70), attempt(10)).verdict.status is UsageStatus.VERIFIED
    # Between the two it would have proved nothing, and it takes nothing back.
    stays = here.looked(attempt(60))
    assert (stays.verdict.status, stays.attempts, stays.verdict.early) == (UsageStatus.VERIFIED, 3, 1)
    assert stays.last_observation_at == ENDED + timedelta(minutes=70)


def test_growth_withdraws_what_was_verified_and_says_so(here: Place) -> None:
    here.write(here.record())
    here.looked(attempt(10), attempt(70), attempt(130, MORE))
    here.check()
    assert here.types()[2:] == ["usage.verified", "usage.withdrawn"]
    assert here.told()[-1][1]["withdrawn"] == 1
    assert [one.status for one in here.logged()] == ["verified", "pending"]
    assert (here.row().last_input, here.row().last_output) == (20, 5)


def test_a_fall_is_announced_once(here: Place) -> None:
    here.write(here.record())
    here.looked(attempt(10), attempt(70), attempt(130, LESS), attempt(200, LESS), attempt(270, NONE))
    here.check()
    assert here.types()[2:] == ["usage.verified", "usage.withdrawn", "usage.warning", "usage.unavailable"]
    assert here.found().verdict.code is UsageCode.ZERO_TOKENS


def test_several_observations_of_one_write_announce_the_last_status(here: Place) -> None:
    here.write(here.record())
    [record] = here.write(here.look(attempt(10), attempt(70), attempt(130, MORE), attempt(200, MORE)))
    assert (record.verdict.code, record.verdict.withdrawn) == (UsageCode.DISCREPANCY, 1)
    here.check()
    assert here.types()[2:] == ["usage.withdrawn", "usage.warning"]
    assert [one.attempts for one in here.logged()] == [4]


def test_an_observation_counts_once_and_a_conflict_is_recorded(here: Place) -> None:
    here.write(here.record())
    here.looked(attempt(10, name="a"), attempt(10, name="a"))
    assert here.found().attempts == 1
    conflict = here.looked(attempt(10, MORE, name="a"))
    assert (conflict.verdict.code, conflict.attempts) == (UsageCode.CONFLICTING_EVIDENCE, 2)
    assert conflict.waits == "person"
    here.looked(attempt(80))
    here.check()
    assert here.types()[2:] == ["usage.warning"]
    assert [one.code for one in here.logged()] == ["conflicting_evidence"]


def test_errors_are_recorded_and_a_refused_key_waits_for_another(here: Place) -> None:
    here.write(here.record())
    failed = here.looked(attempt(10, FetchError.SERVER))
    assert (failed.verdict.code, failed.next_observation_at) == (UsageCode.API_ERROR, ENDED + timedelta(minutes=20))
    refused = here.looked(attempt(20, FetchError.AUTH))
    assert (refused.attempts, refused.next_observation_at, refused.waits) == (2, None, "credential")
    assert here.types()[2:] == ["usage.unavailable"]


def test_policy_and_schedule_are_the_callers(here: Place) -> None:
    policy, schedule = UsagePolicy(interval_min=5), Schedule(first_min=1, audits_h=(2,))
    first = here.write(msgspec.structs.replace(here.record(), policy=policy, schedule=schedule))
    assert first.next_observation_at == ENDED + timedelta(minutes=1)
    here.write(msgspec.structs.replace(here.look(attempt(1), attempt(6)), policy=policy, schedule=schedule))
    record = here.check(policy=policy)
    assert (record.verdict.interval_min, record.next_observation_at) == (5, ENDED + timedelta(hours=2))


def test_an_observation_of_an_unknown_run_is_refused(here: Place) -> None:
    here.write(here.record())
    with pytest.raises(NotFound, match="'gone'"):
        here.write(
            RecordObservations(here.tenant, [RunObservation("r", attempt(10)), RunObservation("gone", attempt(10))])
        )
    with pytest.raises(NotFound, match=r"'gone'.* 1 more"):
        here.write(ObserveNow(here.tenant, ["gone", "r", "away"]))
    assert here.check().attempts == 0


@pytest.mark.parametrize(
    "wrong",
    [
        attempt(10, name=""),
        attempt(10, name="a\0b"),
        attempt(10, name="\ud800"),
        attempt(10, Tokens(-1, 0)),
        msgspec.structs.replace(attempt(10), at=datetime(2026, 5, 4)),  # noqa: DTZ001 - that is wrong
        msgspec.structs.replace(attempt(10), at=ENDED.replace(year=9999)),
    ],
)
def test_an_invalid_observation_is_refused(here: Place, wrong: Observation) -> None:
    here.write(here.record())
    with pytest.raises(InvalidUsage, match="observation"):
        here.write(here.look(attempt(10), wrong))
    assert here.check().attempts == 0


def test_many_observations_are_recorded_with_one_write(here: Place) -> None:
    names = [f"r{number}" for number in range(600)]
    here.write(RecordRuns(here.tenant, "me", [here.metered(one) for one in names]))
    first, last = (
        here.write(RecordObservations(here.tenant, [RunObservation(one, attempt(minutes)) for one in names]))
        for minutes in (10, 70)
    )
    assert [one.run.id for one in last] == [one.run.id for one in first] == names
    assert {one.verdict.status for one in last} == {UsageStatus.VERIFIED}
    here.check("r599")


def test_a_run_is_due_on_request(here: Place, clock: Clock) -> None:
    here.write(here.record())
    here.write(here.record("open", ended_at=None))
    here.looked(attempt(20, FetchError.AUTH))
    answered = here.write(ObserveNow(here.tenant, ["r", "open"]))
    assert [(one.next_observation_at, one.waits) for one in answered] == [(clock.now, ""), (None, "")]
    assert [here.found(), here.found("open")] == answered


def test_a_due_run_is_not_postponed_by_a_request(here: Place, clock: Clock) -> None:
    here.write(here.record())
    (first,) = here.write(ObserveNow(here.tenant, ["r"]))
    clock.now += timedelta(seconds=5)
    (second,) = here.write(ObserveNow(here.tenant, ["r"]))
    assert first.next_observation_at == second.next_observation_at < clock.now


# People and money


def test_a_person_accepts_a_count_that_fell(here: Place) -> None:
    here.write(here.record(steps=1))
    here.looked(attempt(10, MORE), attempt(80, USED), attempt(150, USED))
    assert here.found().verdict.code is UsageCode.DECREASED
    # The provider's clock may be ahead of the person's.
    accepted = here.write(Acknowledge(here.tenant, "r", ack(minutes=0)))
    assert accepted == here.check()
    assert accepted.verdict.status is UsageStatus.VERIFIED
    assert accepted.acknowledged == (ack(minutes=150),)
    assert here.types()[2:] == ["usage.warning", "usage.acknowledged", "usage.verified"]
    [entry] = here.logged()
    assert (entry.status, entry.by, entry.reason) == ("verified", "ann", "it is right")
    # Asked once more, because the answer was lost.
    assert here.write(Acknowledge(here.tenant, "r", ack(minutes=0))) == accepted
    with pytest.raises(NothingToAcknowledge, match=r"verified \(stable\)"):
        here.write(Acknowledge(here.tenant, "r", ack("another")))
    with pytest.raises(NotFound):
        here.write(Acknowledge(here.tenant, "gone", ack()))
    here.looked(attempt(220, LESS))
    again = here.write(Acknowledge(here.tenant, "r", ack()))
    assert len(again.acknowledged) == 2
    here.check()


@pytest.mark.parametrize("minutes", [0, 150, 100_000])
def test_an_acknowledgement_does_not_cover_a_later_fall(here: Place, minutes: float) -> None:
    here.write(here.record())
    here.looked(attempt(10, MORE), attempt(80, USED), attempt(150, USED))
    accepted = here.write(Acknowledge(here.tenant, "r", ack(minutes=minutes)))
    assert accepted.acknowledged == (ack(minutes=150),)
    assert here.looked(attempt(220, LESS)).verdict.code is UsageCode.DECREASED
    here.check()


@pytest.mark.parametrize(
    "wrong",
    [
        Acknowledgement(ENDED, "ann", " "),
        Acknowledgement(ENDED, "", "it is right"),
        Acknowledgement(ENDED, "ann", "\ud800"),
        Acknowledgement(datetime(2026, 5, 4), "ann", "it is right"),  # noqa: DTZ001 - that is wrong
        Acknowledgement(ENDED.replace(year=9999), "ann", "it is right"),
    ],
)
def test_an_acknowledgement_needs_a_name_a_reason_and_a_time(here: Place, wrong: Acknowledgement) -> None:
    here.write(here.record())
    here.looked(attempt(10, MORE), attempt(80, USED))
    with pytest.raises(InvalidUsage, match="acknowledgement"):
        here.write(Acknowledge(here.tenant, "r", wrong))
    assert here.check().acknowledged == ()


def quote(model: str = "m", reason: str = "", price: str = "1") -> PriceQuote:
    prices = {"input": Decimal(price)}
    return PriceQuote("table", "1", "sha", "openai", model, model, BEGUN, prices, reason=reason)


def test_prices_are_frozen_and_costs_stand_side_by_side(here: Place) -> None:
    first = here.write(msgspec.structs.replace(here.record(ended_at=None), quotes=(quote(), quote(price="2"))))
    assert first.quotes == (quote(),)
    both = here.write(msgspec.structs.replace(here.record(), quotes=(quote(price="2"), quote("n"))))
    assert both.quotes == (quote(), quote("n"))
    assert here.write(msgspec.structs.replace(here.record(), quotes=(quote("o"),))).quotes == (
        quote(),
        quote("n"),
        quote("o"),
    )
    with pytest.raises(PriceAlreadyFrozen, match=" m "):
        here.write(RecordPrices(here.tenant, "r", (quote(price="2"),)))
    why = quote(reason="the table was wrong", price="2")
    here.write(RecordPrices(here.tenant, "r", (quote(), why), RunCosts(quoted=Decimal("0.30"))))
    assert here.write(RecordPrices(here.tenant, "r")) == here.found()
    here.write(RecordPrices(here.tenant, "r", ledger=RunCosts(billed=Decimal("0.25"), settled=Decimal(0))))
    priced = here.check()
    assert priced.quotes == (quote(), quote("n"), quote("o"), why)
    assert priced.ledger == RunCosts(Decimal("0.30"), Decimal("0.25"), Decimal(0))
    with pytest.raises(PriceAlreadyFrozen, match=r"USD.*EUR"):
        here.write(RecordPrices(here.tenant, "r", ledger=RunCosts(billed=Decimal(1), currency="EUR")))
    assert here.looked(attempt(10)).ledger == priced.ledger


def test_several_prices_of_one_group_stand_side_by_side(here: Place) -> None:
    here.write(RecordRuns(here.tenant, "me", [here.metered("r"), here.metered("q")]))
    together(
        here.store, [RecordPrices(here.tenant, one, (quote(),), RunCosts(quoted=Decimal(1))) for one in ("r", "q")]
    )
    assert [here.found(one).ledger.quoted for one in ("r", "q")] == [1, 1]


# Accounts


def test_one_reconciler_has_an_account(here: Place, second: Store, clock: Clock) -> None:
    there = here._replace(store=second)
    take = AcquireAccountLease(here.tenant, "main", "me", 60)
    assert together(here.store, [take, msgspec.structs.replace(take, owner="other"), take]) == [True, False, True]
    assert there.write(msgspec.structs.replace(take, owner="other")) is False
    assert there.write(msgspec.structs.replace(take, account="another", owner="other")) is True
    there.write(ReleaseAccountLease(here.tenant, "main", "other"))
    assert there.write(msgspec.structs.replace(take, owner="other")) is False
    here.write(ReleaseAccountLease(here.tenant, "main", "me"))
    assert there.write(msgspec.structs.replace(take, owner="other")) is True
    clock.pass_s(60)
    assert here.write(take) is True


def test_another_key_makes_those_due_that_waited_for_one(here: Place, clock: Clock) -> None:
    here.write(
        RecordRuns(here.tenant, "me", [here.metered("r"), here.metered("q"), here.metered("other", source="other")])
    )
    for run_id in ("r", "other"):
        here.looked(attempt(10, FetchError.AUTH), run_id=run_id)
    assert here.write(ChangeCredential(here.tenant, "main", "first")) == 1
    assert (here.found().next_observation_at, here.found().waits) == (clock.now, "")
    assert here.found("other").waits == "credential"
    here.looked(attempt(20, FetchError.AUTH))
    assert here.write(ChangeCredential(here.tenant, "main", "first")) == 0
    assert here.found().waits == "credential"
    assert here.write(ChangeCredential(here.tenant, "main", "second")) == 1
    assert here.write(AcquireAccountLease(here.tenant, "main", "me", 60)) is True
    assert here.write(ChangeCredential(here.tenant, "main", "second")) == 0


def test_a_price_of_the_same_group_does_not_undo_another_key(here: Place, clock: Clock) -> None:
    here.write(here.record())
    here.looked(attempt(10, FetchError.AUTH))
    priced = RecordPrices(here.tenant, "r", ledger=RunCosts(quoted=Decimal(1)))
    assert together(here.store, [ChangeCredential(here.tenant, "main", "first"), priced])[0] == 1
    assert (here.found().next_observation_at, here.found().ledger.quoted) == (clock.now, Decimal(1))


def test_responses_are_stored_once_by_their_digest(here: Place) -> None:
    window = Window(BEGUN, ENDED)
    kept = StorePages.pack(here.tenant, "main", window, [b"one" * 1_000, b"two"], ENDED)
    later = StorePages.pack(here.tenant, "main", window, [b"one" * 1_000, b"two"], ENDED + timedelta(hours=1))
    other = StorePages.pack(here.tenant, "main", window, [b"one" * 1_000 + b"two"], ENDED)
    assert together(here.store, [kept, later]) == [kept.digest] * 2
    assert here.write(later) == kept.digest
    assert here.write(other) != kept.digest
    with here.store.database.reading() as connection:
        found = find_fetch(connection, here.tenant, "main", kept.digest)
        assert found == StoredFetch(window, ENDED, [b"one" * 1_000, b"two"])
        with pytest.raises(NotFound, match="'another'"):
            find_fetch(connection, here.tenant, "another", kept.digest)


@pytest.mark.parametrize(
    "content", [b"nothing", StorePages.pack("t", "a", Window(BEGUN, ENDED), [b"two"], ENDED).content]
)
def test_a_stored_response_that_was_changed_is_refused(here: Place, content: bytes) -> None:
    kept = StorePages.pack(here.tenant, "main", Window(BEGUN, ENDED), [b"one"], ENDED)
    here.write(msgspec.structs.replace(kept, content=content))
    with here.store.database.reading() as connection, pytest.raises(StoreError, match=kept.digest):
        find_fetch(connection, here.tenant, "main", kept.digest)


# Reading


def test_runs_are_found_by_what_they_are(here: Place) -> None:
    runs = [
        here.metered(f"r{number}", framework=f"f{number % 2}", task=f"t{number % 3}", source=f"a{number % 2}")
        for number in range(6)
    ]
    here.write(RecordRuns(here.tenant, "me", runs))
    here.looked(attempt(10, NONE), run_id="r4")

    def names(**more: Any) -> list[str]:
        with here.store.database.reading() as connection:
            return [one.run.id for one in usage_reading.page(connection, here.tenant, **more)]

    assert names() == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert names(framework="f0", limit=2) == ["r4", "r2"]
    assert names(status=UsageStatus.DATA_NOT_AVAILABLE) == ["r4"]
    assert names(account="a1", task="t0") == ["r3"]
    assert names(before=here.found("r2").seq) == ["r1", "r0"]
    with here.store.database.reading() as connection:
        assert usage_reading.page(connection, "nobody") == []
        assert [*usage_reading.find_many(connection, here.tenant, ["r3", "gone"])] == ["r3"]


def test_runs_are_found_by_their_contract(here: Place) -> None:
    here.write(RecordRuns(here.tenant, "me", [here.metered("a", contract_id="c"), here.metered("b")]))
    of = tables.usage_runs
    with here.store.database.reading() as connection:
        found = connection.execute(select(of.c.id, of.c.contract_id).where(of.c.tenant == here.tenant)).all()
    assert sorted(map(tuple, found)) == [("a", "c"), ("b", None)]


def test_all_runs_are_read_in_blocks(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_reading, "BLOCK", 3)
    runs = [here.metered(f"r{number}", framework=f"f{number % 2}") for number in range(10)]
    here.write(RecordRuns(here.tenant, "me", runs))
    with here.store.database.reading() as connection:
        assert [one.run for one in usage_reading.iterate_all(connection, here.tenant)] == runs
        assert [one.run for one in usage_reading.iterate_all(connection, here.tenant, "f1")] == runs[1::2]
        found = usage_reading.find_many(connection, here.tenant, [one.id for one in runs])
    assert [found[one.id].run for one in runs] == runs


spans = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 60)), st.one_of(st.none(), st.integers(0, 30))), max_size=14
)


@settings(max_examples=15)
@given(spans=spans, window=st.tuples(st.integers(0, 90), st.integers(0, 30)))
def test_an_account_yields_every_run_that_may_have_used_a_span(
    store: Store, spans: list[tuple[int | None, int | None]], window: tuple[int, int]
) -> None:
    here = Place(store, f"usage-{next(_NUMBERS)}")
    start, end = (BEGUN + timedelta(minutes=one) for one in (window[0], window[0] + window[1]))
    runs = []
    for number, (begun, lasted) in enumerate(spans):
        begins = None if begun is None else BEGUN + timedelta(minutes=begun)
        ends = None if lasted is None else (begins or BEGUN) + timedelta(minutes=lasted)
        runs.append(here.metered(f"r{number}", started_at=begins, ended_at=ends, source=here.tenant))
    # A provider knows accounts, and not which tenants share one; the operator says it.
    others = Place(store, f"usage-{next(_NUMBERS)}")
    here.write(RecordRuns(here.tenant, "me", [*runs[::2], here.metered("other", source="other")]))
    others.write(RecordRuns(others.tenant, "me", runs[1::2]))
    wanted = {
        one.id
        for one in runs
        if (one.started_at is None or one.started_at < end) and (one.ended_at is None or one.ended_at >= start)
    }
    with pytest.MonkeyPatch.context() as patched, store.database.reading() as connection:
        patched.setattr(usage_reading, "ATTRIBUTION_BLOCK", 2)
        both = (here.tenant, others.tenant)
        found = [*usage_reading.iterate_account(connection, both, here.tenant, start, end)]
        alone = [*usage_reading.iterate_account(connection, both[:1], here.tenant, start, end)]
    assert len(found) == len(wanted)
    assert {one.id for one in found} == wanted
    assert {one.id for one in alone} == wanted & {one.id for one in runs[::2]}


def test_an_attribution_run_has_the_columns_of_its_row(here: Place) -> None:
    here.write(here.record(attribution_key=AttributionKey(AttributionKind.SESSION, "x"), steps=2, source=here.tenant))
    here.write(here.record("open", ended_at=None, steps=1, source=here.tenant))
    here.looked(attempt(10, Tokens(20, 10, 3)), attempt(20, FetchError.SERVER))
    with here.store.database.reading() as connection:
        unknown, known = usage_reading.iterate_account(connection, (here.tenant,), here.tenant, BEGUN, ENDED)
    record = here.found()
    assert record.next_observation_at is not None
    assert known == AttributionRun(
        "r",
        record.seq,
        "session",
        "x",
        to_micros(BEGUN),
        to_micros(ENDED),
        20,
        10,
        None,
        20,
        10,
        3,
        to_micros(record.next_observation_at),
        "pending",
    )
    assert (unknown.id, unknown.ended_at, unknown.last_input, unknown.next_observation_at) == ("open", None, None, None)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"declares_no_usage": True, "steps": 0}, 0),
        ({"declares_no_usage": True, "steps": (MeteredStep("s"),)}, 0),
        ({"declares_no_usage": True, "steps": (MeteredStep("s"), MeteredStep("t", tokens=USED))}, USED.input),
        ({"steps": (MeteredStep("s", expects_usage=False),)}, 0),
        ({"steps": (MeteredStep("s", expects_usage=False), MeteredStep("t"))}, None),
        ({"steps": 0}, None),
    ],
)
def test_a_run_that_declares_no_usage_counts_zero(here: Place, run: dict[str, Any], said: int | None) -> None:
    here.write(here.record(**run))
    assert here.row().local_input == said


def test_an_imported_observation_is_reported_by_file(here: Place) -> None:
    here.write(here.record())
    verified = here.looked(attempt(10, reported_by="file"), attempt(70)).verdict
    assert (verified.status, verified.reported_by) == (UsageStatus.VERIFIED, "file")
    assert here.looked(attempt(130)).verdict.reported_by == ""
    assert here.looked(attempt(135, reported_by="file")).verdict.reported_by == "file"
    here.check()


def test_tenants_know_nothing_of_each_other(here: Place, new_tenant: Callable[[], str]) -> None:
    there = Place(here.store, new_tenant())
    here.write(here.record())
    there.write(there.record(steps=2))
    here.looked(attempt(10))
    assert (there.check().attempts, here.check().attempts) == (0, 1)
    with pytest.raises(NotFound):
        Place(here.store, "nobody").found()


def test_no_statement_asks_for_one_run_at_a_time(here: Place, asked_of: list[str]) -> None:
    names = [f"r{number}" for number in range(400)]
    here.write(RecordRuns(here.tenant, "me", [here.metered(one) for one in names]))
    # The runs, and who is counted with them by their attribution key or by time alone.
    assert len(asked_of) == 3
    here.write(RecordObservations(here.tenant, [RunObservation(one, attempt(10)) for one in names]))
    asked_of.clear()
    here.write(RecordObservations(here.tenant, [RunObservation(one, attempt(70)) for one in names]))
    # The runs, the looks at them, and how much the audit log says of each.
    assert len(asked_of) == 3
    assert here.check("r399").verdict.status is UsageStatus.VERIFIED


# Many observations of one run.


@pytest.fixture
def fold_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets from how many observations on a run keeps its progress."""
    return lambda number: monkeypatch.setattr("meruit.usage.progress.FOLD_FROM", number)


def _arrivals(chance: Random) -> Iterator[Observation]:
    """Observations as providers, files and mistakes bring them: late ones, repeats, conflicts, failures."""
    minutes, seen = 5, list[Observation]()
    for number in range(14):
        kind = chance.choice(["next", "next", "next", "soon", "again", "late", "failed", "imported"])
        minutes += 5 if kind == "soon" else 60
        at = chance.choice([2, 7, 33]) if kind == "late" else minutes
        one = attempt(at, chance.choice([USED, USED, USED, MORE, LESS, NONE]), name=f"{number}")
        if kind == "failed":
            one = attempt(at, chance.choice([FetchError.AUTH, FetchError.RATE_LIMITED]), name=f"{number}")
        if kind == "imported":
            one = mark_imported(one)
        if kind == "again" and seen:
            one = chance.choice(seen)
        if chance.random() < 0.02 and seen:
            one = msgspec.structs.replace(one, id=chance.choice(seen).id)
        seen.append(one)
        yield one


@pytest.mark.parametrize("number", sample(range(40), 8, name="arrivals"))
def test_progress_changes_nothing_that_is_recorded(
    here: Place, new_tenant: Callable[[], str], fold_from: Callable[[int], None], number: int
) -> None:
    there = Place(here.store, new_tenant())
    found = []
    for place, first in ((here, 1), (there, 1_000)):
        fold_from(first)
        chance = Random(number)
        place.write(place.record())
        arriving, records = [*_arrivals(chance)], list[UsageRecord]()
        while arriving:
            several, arriving = arriving[: chance.choice([1, 1, 2])], arriving[2:]
            records += place.write(place.look(*several))
            if records[-1].verdict.code is UsageCode.DECREASED and chance.random() < 0.5:
                ack = Acknowledgement(ENDED, "ada", f"seen {len(records)}")
                records.append(place.write(Acknowledge(place.tenant, "r", ack)))
        place.check()
        shown = [msgspec.structs.replace(one, seq=0, run=metered()) for one in records]
        logged = [(one.status, one.code, one.attempts) for one in place.logged()]
        found.append((shown, logged, place.types()))
    assert found[0] == found[1]


def test_an_observation_of_many_reads_none_of_the_others(here: Place, asked_of: list[str]) -> None:
    here.write(here.record())
    here.write(here.look(*(attempt(5 * n, Tokens(n, n)) for n in range(1, 30))))
    asked_of.clear()
    here.write(here.look(attempt(200, Tokens(40, 40))))
    # The run, and whether the id is known.
    assert len(asked_of) == 2
    assert not any("ORDER BY run_id, number" in one for one in asked_of)
    assert here.check().attempts == 30


def test_two_writes_of_one_group_see_each_others_observations(here: Place) -> None:
    here.write(here.record())
    here.write(here.look(*(attempt(5 * n, Tokens(n, n)) for n in range(1, 30))))
    one, twin = attempt(200, USED, name="x"), attempt(210, MORE, name="x")
    together(here.store, [here.look(one), here.look(one), here.look(attempt(205, MORE)), here.look(twin)])
    assert here.check().verdict.code is UsageCode.CONFLICTING_EVIDENCE
    assert here.found().attempts == 32


@pytest.mark.parametrize("progress", [b"{}", b"\xff", None])
def test_progress_that_was_changed_from_outside_proves_nothing(here: Place, progress: bytes | None) -> None:
    here.write(here.record())
    here.write(here.look(*(attempt(5 * n, Tokens(n, n)) for n in range(1, 30))))
    if progress is None:
        # As if an equal observation had been seen an hour ago.
        there = msgspec.json.decode(here.row().progress)
        earlier = {"at": (ENDED + timedelta(minutes=100)).isoformat(), "total": {"input": 10, "output": 5}}
        there["fold"]["success"]["observations"] = [one | earlier for one in there["fold"]["success"]["observations"]]
        there["fold"]["success"]["marks"] = {}
        progress = msgspec.json.encode(there)
    of = tables.usage_runs
    with here.store.database.writer.begin() as connection:
        connection.execute(update(of).where(of.c.tenant == here.tenant).values(progress=progress))
    here.write(here.look(attempt(200)))
    # The claim rests on the observations themselves, of which the last one is a fall.
    assert here.check().verdict.code is UsageCode.DECREASED
    assert here.logged() == []


def test_totals_of_accounts_follow_a_run_that_moves(here: Place) -> None:
    here.write(here.record(ended_at=None, source="first"))
    here.write(here.record("other", source="first"))
    here.check_totals()
    here.write(here.record(source="second"))
    here.check_totals()
    here.looked(attempt(10), attempt(70))
    here.looked(attempt(10, Tokens(MOST_TOKENS, 0), unattributed=5), run_id="other")
    with here.store.database.reading() as connection:
        totals = {one.account: one for one in usage_reading.sum_accounts(connection, here.tenant)}
    assert totals["second"].runs == {UsageStatus.VERIFIED: 1}
    assert (totals["second"].tokens, totals["first"].tokens) == (USED.total, MAX_TOTAL_TOKENS)
    with here.store.database.reading() as connection:
        assert usage_reading.sum_accounts(connection, "nobody") == []
