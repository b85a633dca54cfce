"""What every store does, whatever database it is on."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise, product
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest import mock

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, insert, inspect, select, update
from tests.conformance.counting import rows_of
from tests.outcomes.making import (
    CRITERIA,
    MANY_DIGITS,
    body_of,
    criteria_of,
    judged,
    naive_root,
    outcome,
    record,
    recorded,
    together,
    written,
)
from tests.postgres import Server
from tests.sampling import is_in_full
from tests.store.layouts import LATER, LATER_TABLE, stamp, use_later_layout

from meruit.audit.check import check_store
from meruit.errors import (
    IdempotencyConflict,
    MeruitError,
    NotFound,
    StoreError,
    StoreUnavailable,
    TooManyEntries,
    UnknownLayout,
)
from meruit.log.commitment import matches
from meruit.log.entries import EvidenceEntry, VerdictEntry, criteria_digest_of, read_entry
from meruit.log.merkle import Frontier, inclusion_proof, is_consistent, is_included, leaf_hash
from meruit.log.note import SigningKey, open_checkpoint
from meruit.model.access import Caller, Role, Scope
from meruit.model.canonical import digest
from meruit.model.events import EventType
from meruit.model.outcome import Labels, OutcomeSummary
from meruit.outcomes.store import criteria
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.read import OutcomeFilter
from meruit.outcomes.store.write import AddVersions, NewOutcome, NewVersion, RecordedVersion
from meruit.store import log as audit
from meruit.store import migrate as opening
from meruit.store import paging, recorder, tables
from meruit.store.access import keys
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest, IdempotentWrite
from meruit.store.location import Location
from meruit.store.log_tiles import Tiles
from meruit.store.recorder import Write
from meruit.store.store import ClockAndEntropy, Store
from meruit.store.transaction import WriteTransaction

NewTenant = Callable[[], str]
AT_ONCE = 8
OLDER = opening.HEAD
"""The layout before `use_later_layout`."""
EXAMPLES = settings(max_examples=25 if is_in_full() else 10)
ROOT = Path(__file__).resolve().parents[2]

# Text that any database can hold; what they cannot is refused, and has a test of its own.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(TEXT, JSON, max_size=4)
LABELS = st.builds(
    Labels,
    contract_id=st.none() | TEXT,
    agent_id=st.none() | TEXT,
    consumer_id=st.none() | TEXT,
    domain=st.none() | TEXT,
)


def leaves_of(connection: Connection) -> Sequence[Any]:
    return connection.execute(select(tables.log_leaves).order_by(tables.log_leaves.c.seq)).all()


def at_once(number: int, call: Callable[[int], Any]) -> list[Any]:
    """What threads that start together answer, or are refused with."""
    barrier = Barrier(number)

    def one(index: int) -> Any:
        barrier.wait(30)
        try:
            return call(index)
        except MeruitError as refusal:
            return refusal

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


# Opening


def test_a_new_store_is_made_where_there_is_none(empty_location: Location) -> None:
    if empty_location.kind == "sqlite":
        assert not opening.status(empty_location).exists
        assert not empty_location.folder.exists()
    Store.open(empty_location).close()
    status = opening.status(empty_location)
    assert (status.exists, status.is_current, status.revision) == (True, True, opening.HEAD)
    assert (status.outcomes, status.log_size, status.events) == (0, 1, 0)


def test_a_store_opened_again_is_the_same_store(store_location: Location) -> None:
    first = Store.open(store_location)
    kept = recorded(first, outcome(first))
    first.close()
    second = Store.open(store_location)
    try:
        assert second.signer.vkey == first.signer.vkey
        with second.database.reading() as connection:
            assert outcomes.summary(connection, Scope("acme"), kept[0].outcome_id).version == 1
            assert audit.log_size(connection) == kept[0].leaf + 1
    finally:
        second.close()


def test_looking_at_a_store_makes_and_changes_nothing(store: Store) -> None:
    recorded(store, outcome(store))
    before = opening.status(store.database.location)
    assert opening.status(store.database.location) == before
    assert (before.outcomes, before.log_size, before.events) == (1, 4, 1)


def one_log(location: Location, vkeys: Sequence[Any]) -> None:
    """All of them hold one store with one key, admitted once."""
    assert {type(vkey) for vkey in vkeys} == {str}, vkeys
    assert len(set(vkeys)) == 1
    assert opening.status(location).log_size == 1


def test_threads_that_open_a_new_store_at_once_share_it(empty_location: Location) -> None:
    def opened(_index: int) -> str:
        store = Store.open(empty_location)
        store.close()
        return store.signer.vkey

    one_log(empty_location, at_once(AT_ONCE, opened))


OPENING = """
import os, sys
from pathlib import Path
from meruit.store.location import Location
from meruit.store.log_tiles import Tiles
from meruit.store.store import Store
from meruit.store import migrate
import alembic.command
folder, url, number, migrations, *migrate.REVISIONS = sys.argv[1:]
migrate.MIGRATIONS = Path(migrations)
migrate.HEAD = migrate.REVISIONS[-1]
begun, begin = os.pipe()
for _ in range(int(number)):
    if not os.fork():
        os.close(begin)
        os.read(begun, 1)
        store = Store.open(Location(Path(folder), url or None))
        store.close()
        os.write(1, f"{store.signer.vkey}\\n".encode())
        sys.exit()
os.close(begin)
sys.exit(any([os.wait()[1] for _ in range(int(number))]))
"""


def opened_by_processes(location: Location, number: int) -> list[str]:
    """The vkey that each of several processes found, all opening at one moment; forks, for importing takes longest."""
    layout = (str(opening.MIGRATIONS), *opening.REVISIONS)
    command = [sys.executable, "-c", OPENING, str(location.folder), location.url or "", str(number), *layout]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = done.stdout.split()
    assert (done.returncode, len(found)) == (0, number), done
    return found


def test_processes_that_open_a_new_store_at_once_share_it(empty_location: Location) -> None:
    one_log(empty_location, opened_by_processes(empty_location, 3))


def test_a_death_while_the_first_key_was_made_keeps_nobody_out(store_location: Location) -> None:
    # In a container every process has the same id, so a leftover is met again and again.
    store_location.folder.mkdir()
    (store_location.folder / f"audit-key.pem.{os.getpid()}").write_bytes(b"half a key")
    Store.open(store_location).close()


@pytest.fixture
def older_location(
    empty_location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Location, NewOutcome]:
    """A store with two outcomes, one layout older than what this process uses from here on."""
    store = Store.open(empty_location)
    kept = outcome(store, labels=Labels("c1", "a1"), work_output={"text": "the cat", "pad": "x" * 1000})
    recorded(store, kept, outcome(store, "other"))
    store.close()
    use_later_layout(monkeypatch, tmp_path)
    return empty_location, kept


def test_an_older_store_is_upgraded_with_its_data(older_location: tuple[Location, NewOutcome]) -> None:
    location, kept = older_location
    assert (opening.status(location).revision, opening.status(location).is_known) == (OLDER, True)
    store = Store.open(location)
    try:
        assert opening.status(location).is_current
        with store.database.reading() as connection:
            assert inspect(connection).has_table(LATER_TABLE)
            found = outcomes.full_record(connection, Scope("acme"), kept.id, store.blobs)
            assert found.work_output == json.loads(kept.output.content)
            assert found.verification_result == kept.result
            hashes = [leaf.hash for leaf in leaves_of(connection)]
        recorded(store, outcome(store, labels=Labels("c1")))
        with store.database.reading() as connection:
            grown = [leaf.hash for leaf in leaves_of(connection)]
            assert grown[: len(hashes)] == hashes
            assert audit.last_in_contract(connection, "acme", "c1") == 4
    finally:
        store.close()


def test_a_sqlite_file_is_kept_as_it_was_before_an_upgrade(older_location: tuple[Location, NewOutcome]) -> None:
    location, _kept = older_location
    done = opening.upgrade(location)
    assert (done.before, done.after) == (OLDER, LATER)
    if location.kind == "postgresql":
        assert done.backup is None
        return
    assert done.backup is not None
    restored = Location(location.folder / "restored")
    restored.folder.mkdir()
    done.backup.rename(restored.folder / "meruit.db")
    assert opening.status(restored).revision == OLDER
    assert opening.status(restored).outcomes == 2
    assert opening.upgrade(location) == opening.UpgradeResult(LATER, LATER, None)


def test_processes_that_upgrade_a_store_at_once_do_it_once(older_location: tuple[Location, NewOutcome]) -> None:
    location, _kept = older_location
    before = opening.status(location).log_size
    assert len(set(opened_by_processes(location, 3))) == 1
    after = opening.status(location)
    assert (after.is_current, after.log_size, after.outcomes) == (True, before, 2)


def test_threads_that_upgrade_a_store_at_once_do_it_once(older_location: tuple[Location, NewOutcome]) -> None:
    location, _kept = older_location
    done = at_once(AT_ONCE, lambda _index: opening.upgrade(location))
    assert {type(one) for one in done} == {opening.UpgradeResult}, done
    assert opening.status(location).is_current


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005", "0006", "9999", LATER])
def test_a_layout_that_is_not_known_is_refused(store_location: Location, revision: str) -> None:
    Store.open(store_location).close()
    stamp(store_location, revision)
    for use in (Store.open, opening.upgrade):
        with pytest.raises(UnknownLayout) as refused:
            use(store_location)
        assert all(part in str(refused.value) for part in (store_location.display_name, revision, opening.HEAD))
        # What to do: save the records with the version that made them.
        assert " outcome export" in str(refused.value)
    found = opening.status(store_location)
    assert (found.revision, found.is_current, found.is_known, found.outcomes) == (revision, False, False, 0)


def test_the_migrations_make_the_tables_of_this_version(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.database.reader.connect() as connection:
        found = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(found, tables.metadata) == []
        # What Alembic does not compare.
        schema = inspect(connection)
        for table in tables.metadata.sorted_tables:
            columns = schema.get_columns(table.name)
            assert [one["name"] for one in columns] == [one.name for one in table.columns], table.name
            key = schema.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [one.name for one in table.primary_key.columns], table.name
        (check,) = schema.get_check_constraints("balances")
        assert check["name"] == "balances_are_exact"


# Recording and reading back


@EXAMPLES
@given(
    labels=LABELS,
    parts=st.tuples(PAYLOADS, PAYLOADS, PAYLOADS),
    threshold=st.sampled_from([0.5, MANY_DIGITS]),
)
def test_what_is_recorded_is_read_back(
    shared: Store, new_tenant: NewTenant, labels: Labels, parts: tuple[Any, ...], threshold: Any
) -> None:
    tenant = new_tenant()
    rules = criteria_of(threshold)
    new = outcome(
        shared, tenant, labels=labels, criteria=rules, work_input=parts[0], work_output=parts[1], metadata=parts[2]
    )
    (where,) = recorded(shared, new)
    scope = Scope(tenant)
    with shared.database.reading() as connection:
        line = outcomes.summary(connection, scope, new.id)
        (version,) = outcomes.versions(connection, scope, new.id)
        full = outcomes.full_record(connection, scope, new.id, shared.blobs)
        work = outcomes.evidence(connection, scope, new.id, shared.blobs)
        kept = outcomes.criteria_body(connection, tenant, line.criteria_digest)
        leaf = read_entry(audit.leaf(connection, where.leaf).body)
    assert where == RecordedVersion(new.id, 1, version.leaf)
    assert work == tuple(written(part) for part in parts)
    assert version.result is not None
    assert version.result.to_json() == new.result.to_json()
    assert full.verification_result == version.result
    assert (line.verdict, line.success, line.score) == (new.result.verdict, new.result.success, new.result.score)
    assert line.created_at == new.result.verified_at == full.created_at == version.created_at
    assert (line.agent_id, line.consumer_id, line.domain) == (labels.agent_id, labels.consumer_id, labels.domain)
    assert line.contract_id == full.contract_id == (labels.contract_id or new.id)
    assert kept == new.criteria
    assert isinstance(leaf, VerdictEntry)
    assert (leaf.outcome, leaf.criteria, leaf.contract_seq) == (new.id, line.criteria_digest, 2)


def test_criteria_of_many_digits_keep_their_digest(store: Store) -> None:
    rules = criteria_of(MANY_DIGITS, weight=12345678901234567890123)
    new = outcome(store, criteria=rules)
    recorded(store, new)
    with store.database.reading() as connection:
        full = outcomes.full_record(connection, Scope("acme"), new.id, store.blobs)
    assert full.success_criteria == rules
    assert digest(full.success_criteria.model_dump(exclude_defaults=True)) == new.result.criteria_digest
    assert criteria_digest_of(new.criteria) == full.criteria_digest


def test_the_commitments_in_the_log_are_to_what_is_kept(store: Store) -> None:
    new = outcome(store)
    (where,) = recorded(store, new)
    with store.database.reading() as connection:
        verdict = read_entry(audit.leaf(connection, where.leaf).body)
        assert isinstance(verdict, VerdictEntry)
        evidence = read_entry(audit.leaf(connection, verdict.evidence_index).body)
        assert isinstance(evidence, EvidenceEntry)
        row = connection.execute(select(tables.outcomes)).one()
        judged_row = connection.execute(select(tables.verdicts)).one()
    assert matches(evidence.input, row.input_salt, new.input.content)
    assert matches(evidence.output, row.output_salt, new.output.content)
    assert matches(evidence.metadata, row.metadata_salt, new.metadata.content)
    assert matches(verdict.result, judged_row.salt, judged_row.result)
    assert verdict.criteria_index < verdict.evidence_index < where.leaf


def test_evidence_that_comes_again_is_kept_once_and_counted(store: Store) -> None:
    same = outcome(store)
    recorded(store, same)
    recorded(store, outcome(store), outcome(store))
    with store.database.reading() as connection:
        refs = connection.execute(select(tables.blobs.c.address, tables.blobs.c.refs)).all()
    assert {*refs} == {(part.address, 3) for part in (same.input, same.output, same.metadata)}


def test_an_outcome_that_is_not_there_is_not_found(store: Store) -> None:
    with store.database.reading() as connection:
        for read in (outcomes.summary, outcomes.versions):
            with pytest.raises(NotFound, match="no outcome 'nothing'"):
                read(connection, Scope("acme"), "nothing")
        with pytest.raises(NotFound):
            audit.leaf(connection, 99)
        with pytest.raises(NotFound):
            outcomes.criteria_body(connection, "acme", "0" * 64)


def test_text_that_no_database_holds_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound), store.database.reading() as connection:
        outcomes.summary(connection, Scope("acme"), "out_\x00")


def test_one_contract_can_name_several_outcomes(store: Store) -> None:
    several = [outcome(store, labels=Labels("c1")) for _ in range(3)]
    recorded(store, *several[:2])
    recorded(store, several[2])
    with store.database.reading() as connection:
        entries = audit.window(connection, "acme", "c1", 1, 6)
        assert [read_entry(entry.body).outcome for entry in entries] == [  # type: ignore[union-attr]  # of contracts all
            one.id for one in several for _ in range(2)
        ]
        with pytest.raises(TooManyEntries):
            audit.window(connection, "acme", "c1", 1, audit.MAX_WINDOW + 1)


# Paging


@EXAMPLES
@given(
    number=st.integers(0, 30),
    size=st.integers(1, 12),
    examined=st.sampled_from([1, 2, 7, 5_000]),
    names=st.sets(st.sampled_from(["contract_id", "agent_id", "consumer_id", "verdict", "criteria_digest"])),
)
def test_pages_put_together_are_everything_newest_first(
    shared: Store, new_tenant: NewTenant, number: int, size: int, examined: int, names: set[str]
) -> None:
    tenant = new_tenant()
    made = [
        outcome(
            shared,
            tenant,
            labels=Labels(f"c{index % 3}", f"a{index % 2}", f"b{index % 4}"),
            criteria=criteria_of(0.5 if index % 2 else 0.25),
            work_output={"text": "the cat sat" if index % 3 else "dog"},
        )
        for index in range(number)
    ]
    recorded(shared, *made)
    with shared.database.reading() as connection:
        lines = outcomes.page(connection, Scope(tenant)).entries
    known = {name: sorted({str(getattr(line, name)) for line in lines}) for name in sorted(names)}
    seen: list[str] = []
    for values in product(*known.values()):
        wanted: dict[str, Any] = dict(zip(known, values, strict=True))
        narrowed = OutcomeFilter(**wanted)
        with mock.patch.object(paging, "MAX_EXAMINED", examined):
            found = list(paged(shared, Scope(tenant), narrowed, size))
        assert found == [line for line in lines if all(getattr(line, name) == one for name, one in wanted.items())]
        with shared.database.reading() as connection:
            assert outcomes.forward(connection, Scope(tenant), narrowed=narrowed) == found[::-1]
        seen.extend(line.id for line in found)
    assert Counter(seen) == Counter(one.id for one in made)


def paged(store: Store, scope: Scope, narrowed: OutcomeFilter | None, size: int) -> Iterator[OutcomeSummary]:
    before: int | None = None
    for _ in range(100):
        with store.database.reading() as connection:
            page = outcomes.page(connection, scope, narrowed=narrowed, before=before, limit=size)
        yield from page.entries
        if page.next is None:
            return
        assert before is None or page.next < before
        before = page.next
    raise AssertionError("pages without end")


@EXAMPLES
@given(
    days=st.lists(st.integers(0, 6), max_size=14),
    since=st.none() | st.integers(0, 7),
    until=st.none() | st.integers(0, 7),
    examined=st.sampled_from([2, 5_000]),
)
def test_a_span_of_time_is_exact_while_the_clock_goes_back_less_than_its_slack(
    shared: Store, new_tenant: NewTenant, days: list[int], since: int | None, until: int | None, examined: int
) -> None:
    tenant, start = new_tenant(), datetime(2026, 1, 1, tzinfo=UTC)
    at = [start + timedelta(days=day) for day in days]
    recorded(shared, *(outcome(shared, tenant, moment=moment) for moment in at))
    begin, end = (None if day is None else start + timedelta(days=day) for day in (since, until))
    with (
        mock.patch.object(paging, "MAX_EXAMINED", examined),
        mock.patch.object(paging, "CLOCK_SLACK_MICROS", 7 * 86_400 * 1_000_000),
    ):
        found = list(paged(shared, Scope(tenant), OutcomeFilter(since=begin, until=end), 3))
    inside = [one for one in at if (begin is None or one >= begin) and (end is None or one < end)]
    assert [line.created_at for line in found] == inside[::-1]


# Tenants and agents


@EXAMPLES
@given(ids=st.lists(TEXT, min_size=1, max_size=4, unique=True), contract=st.none() | TEXT, key=TEXT)
def test_tenants_with_the_same_names_never_see_each_other(
    shared: Store, new_tenant: NewTenant, ids: list[str], contract: str | None, key: str
) -> None:
    one, other, nobody = new_tenant(), new_tenant(), new_tenant()
    for tenant in (one, other):
        made = [
            outcome(shared, tenant, labels=Labels(contract), work_output={"of": tenant}, outcome_id=name)
            for name in ids
        ]
        assert not isinstance(
            shared.recorder.write(record(made, IdempotentRequest(key, tenant, 201), tenant, tenant.encode())),
            IdempotentReplay,
        )
        shared.recorder.write(
            criteria.RegisterCriteria(tenant, "same", body_of(CRITERIA), criteria_digest_of(made[0].criteria), tenant)
        )
    assert rows_of(shared, one) == rows_of(shared, other)
    assert set(rows_of(shared, nobody).values()) == {0}
    with shared.database.reading() as connection:
        for tenant in (one, other):
            assert {line.id for line in outcomes.page(connection, Scope(tenant)).entries} == set(ids)
            for name in ids:
                found = outcomes.full_record(connection, Scope(tenant), name, shared.blobs)
                assert found.work_output == {"of": tenant}
            (named,) = criteria.page(connection, tenant)
            assert (named.version, named.created_by) == (1, tenant)
        with pytest.raises(NotFound):
            outcomes.summary(connection, Scope(nobody), ids[0])
        with pytest.raises(NotFound):
            criteria.find(connection, nobody, "same")
    again = shared.recorder.write(record([], IdempotentRequest(key, one, 201), one))
    assert again == IdempotentReplay(201, one.encode())


def test_an_agent_sees_its_own_outcomes_and_one_without_a_name_none(store: Store) -> None:
    mine, others, nobodys = (outcome(store, labels=Labels("c1", agent)) for agent in ("a1", "a2", None))
    recorded(store, mine, others, nobodys)
    own = Caller("acme", Role.AGENT, "k", "a1").scope
    nameless = Scope("acme", None, only_own=True)
    with store.database.reading() as connection:
        assert [line.id for line in outcomes.page(connection, own).entries] == [mine.id]
        assert [line.id for line in outcomes.forward(connection, own)] == [mine.id]
        assert outcomes.page(connection, own, narrowed=OutcomeFilter(agent_id="a2")).entries == []
        assert outcomes.page(connection, nameless).entries == []
        assert len(outcomes.page(connection, Caller("acme", Role.AUDITOR, "k").scope).entries) == 3
        for hidden in (others, nobodys):
            for scope in (own, nameless):
                with pytest.raises(NotFound):
                    outcomes.summary(connection, scope, hidden.id)
                with pytest.raises(NotFound):
                    outcomes.versions(connection, scope, hidden.id)
                with pytest.raises(NotFound):
                    outcomes.full_record(connection, scope, hidden.id, store.blobs)
        told = outcomes.for_agent(outcomes.summary(connection, own, mine.id))
        assert (told.id, told.contract_id, told.verdict) == (mine.id, "c1", mine.result.verdict)


# Idempotency, and callers that share a transaction


def requests(store: Store, tenant: str, fingerprints: Sequence[str], key: str = "k") -> list[Write[Any]]:
    return [
        record([outcome(store, tenant)], IdempotentRequest(key, fingerprint, 201), tenant, f"reply {number}".encode())
        for number, fingerprint in enumerate(fingerprints)
    ]


@EXAMPLES
@given(groups=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_request_that_comes_again_has_one_effect_and_one_answer(
    shared: Store, new_tenant: NewTenant, groups: list[int]
) -> None:
    tenant = new_tenant()
    answers = [answer for size in groups for answer in together(shared, requests(shared, tenant, ["f"] * size))]
    assert [type(answer) for answer in answers] == [list] + [IdempotentReplay] * (len(answers) - 1)
    assert set(answers[1:]) <= {IdempotentReplay(201, b"reply 0")}
    found = rows_of(shared, tenant)
    assert (found["outcomes"], found["events"], found["idempotency"]) == (1, 1, 1)


def test_a_key_used_for_another_request_is_refused(store: Store) -> None:
    answers = together(store, requests(store, "acme", ["f", "g", "f"]))
    assert [type(answer) for answer in answers] == [list, IdempotencyConflict, IdempotentReplay]
    with pytest.raises(IdempotencyConflict, match="Idempotency-Key"):
        store.recorder.write(requests(store, "acme", ["g"])[0])
    assert rows_of(store, "acme")["outcomes"] == 1


def test_threads_with_one_key_have_one_effect(store: Store) -> None:
    made = requests(store, "acme", ["f"] * AT_ONCE)
    answers = at_once(AT_ONCE, lambda index: store.recorder.write(made[index]))
    assert Counter(map(type, answers)) == {list: 1, IdempotentReplay: AT_ONCE - 1}
    assert len({answer for answer in answers if isinstance(answer, IdempotentReplay)}) == 1
    assert rows_of(store, "acme")["outcomes"] == 1


def test_stores_that_share_a_database_share_its_keys(store: Store) -> None:
    second = Store.open(store.database.location)
    try:
        made = requests(store, "acme", ["f"] * AT_ONCE)
        answers = at_once(AT_ONCE, lambda index: (store, second)[index % 2].recorder.write(made[index]))
    finally:
        second.close()
    assert Counter(map(type, answers)) == {list: 1, IdempotentReplay: AT_ONCE - 1}
    assert rows_of(store, "acme")["outcomes"] == 1


def refusing(_writing: WriteTransaction) -> None:
    raise MeruitError("no")


def half_refused(store: Store, tenant: str) -> Callable[[WriteTransaction], None]:
    made = requests(store, tenant, ["f"], "refused")[0]

    def write(writing: WriteTransaction) -> None:
        made(writing)
        raise MeruitError("no")

    return write


@EXAMPLES
@given(refused=st.lists(st.booleans(), min_size=1, max_size=8))
def test_one_callers_refusal_costs_the_others_nothing(
    shared: Store, new_tenant: NewTenant, refused: list[bool]
) -> None:
    tenant = new_tenant()
    writes = [half_refused(shared, tenant) if no else record([outcome(shared, tenant)]) for no in refused]
    answers = together(shared, writes)
    assert [isinstance(answer, MeruitError) for answer in answers] == refused
    found = rows_of(shared, tenant)
    kept = refused.count(False)
    assert (found["outcomes"], found["verdicts"], found["events"], found["idempotency"]) == (kept, kept, kept, 0)
    with shared.database.reading() as connection:
        for answer in answers:
            if isinstance(answer, list):
                entry = read_entry(audit.leaf(connection, answer[0].leaf).body)
                assert isinstance(entry, VerdictEntry)
                assert entry.outcome == answer[0].outcome_id


def test_an_outcome_recorded_twice_is_refused_and_costs_the_others_nothing(store: Store) -> None:
    twice = outcome(store, labels=Labels("c1"))
    others = [outcome(store, labels=Labels("c1")) for _ in range(2)]
    answers = together(store, [record([others[0]]), record([twice]), record([twice]), record([others[1]])])
    assert [isinstance(answer, StoreError) for answer in answers] == [False, False, True, False]
    assert "contradicts" in str(answers[2])
    assert rows_of(store, "acme")["outcomes"] == 3
    with store.database.reading() as connection:
        assert audit.last_in_contract(connection, "acme", "c1") == 6


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"], ids=["nul", "surrogate"])
@pytest.mark.parametrize("where", ["label", "key", "name"])
def test_text_that_cannot_be_written_costs_the_others_nothing(store: Store, where: str, bad: str) -> None:
    writes: dict[str, Any] = {
        "label": record([outcome(store, labels=Labels(bad, bad, bad, bad))]),
        "key": requests(store, "acme", ["f"], bad)[0],
        "name": keys.NewKey("acme", Role.ADMIN, bad, None, None, os.urandom),
    }
    one, _, other = together(store, [record([outcome(store)]), writes[where], record([outcome(store)])])
    assert [type(one), type(other)] == [list, list], (one, other)


def test_the_answers_of_an_event_loop_come_to_it(store: Store) -> None:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(store.recorder.record(record([outcome(store)])) for _ in range(20)))

    answers = asyncio.run(all_of_them())
    assert len({answer[0].leaf for answer in answers}) == 20


def test_a_caller_that_no_longer_waits_keeps_nobody_else_waiting(store: Store) -> None:
    async def impatient() -> Any:
        gone = asyncio.ensure_future(store.recorder.record(record([outcome(store)])))
        await asyncio.sleep(0)
        gone.cancel()
        return await store.recorder.record(record([outcome(store)]))

    assert asyncio.run(impatient())
    assert rows_of(store, "acme")["outcomes"] == 2


def test_a_listener_hears_of_each_transaction(store: Store) -> None:
    heard: list[recorder.CommitNotice] = []
    store.recorder.listen(heard.append)
    together(store, [record([outcome(store)]), record([outcome(store), outcome(store)])])
    assert [(one.callers, one.events, [row[0] for row in one.emitted]) for one in heard] == [(2, 3, [1, 2, 3])]


def test_a_closed_recorder_refuses(store: Store) -> None:
    store.recorder.close()
    with pytest.raises(StoreUnavailable, match="being closed"):
        store.recorder.write(audit.write_nothing)


def test_closing_writes_what_waits(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(recorded, store, outcome(store)) for _ in range(4)]
        for answer in waiting:
            answer.result(60)
        store.recorder.close()
    assert rows_of(store, "acme")["outcomes"] == 4


def test_more_callers_than_can_wait_are_refused_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_WAITING", 3)
    with pytest.raises(StoreUnavailable, match=r"^3 callers "):
        together(store, [audit.write_nothing] * 4)
    monkeypatch.undo()
    recorded(store, outcome(store))


# Versions


def again(new: NewOutcome, expected: int, rules: Any, reason: str = "stricter") -> AddVersions:
    result = judged(rules)
    return AddVersions(new.tenant, body_of(rules), (NewVersion(new.id, expected, result, os.urandom(16)),), reason)


def test_a_later_version_follows_and_changes_no_earlier_one(store: Store) -> None:
    new = outcome(store, labels=Labels("c1"))
    recorded(store, new)
    rules = criteria_of(0.9)
    (where,) = store.recorder.write(again(new, 1, rules))
    scope = Scope("acme")
    with store.database.reading() as connection:
        first, second = outcomes.versions(connection, scope, new.id)
        assert (first.version, first.result, first.reason) == (1, new.result, "")
        assert (second.version, second.leaf, second.reason) == (2, where.leaf, "stricter")
        line = outcomes.summary(connection, scope, new.id)
        assert (line.version, line.criteria_digest, line.verdict) == (2, second.criteria_digest, second.verdict)
        assert outcomes.full_record(connection, scope, new.id, store.blobs, 1).success_criteria == CRITERIA
        latest = outcomes.full_record(connection, scope, new.id, store.blobs)
        assert (latest.success_criteria, latest.verification_result) == (rules, second.result)
        with pytest.raises(NotFound, match="no version 3"):
            outcomes.version(connection, scope, new.id, 3)
        entry = read_entry(audit.leaf(connection, where.leaf).body)
    assert isinstance(entry, VerdictEntry)
    assert (entry.version, entry.contract_seq, entry.reason) == (2, 3, "stricter")


@EXAMPLES
@given(expected=st.lists(st.integers(0, 5), max_size=8))
def test_a_version_that_follows_another_than_expected_writes_nothing(
    shared: Store, new_tenant: NewTenant, expected: list[int]
) -> None:
    tenant = new_tenant()
    new = outcome(shared, tenant)
    recorded(shared, new)
    latest = 1
    for number in expected:
        before = rows_of(shared, tenant)
        wrote = shared.recorder.write(again(new, number, criteria_of(0.9)))
        assert [where.version for where in wrote] == ([latest + 1] if number == latest else [])
        latest += len(wrote)
        assert wrote or rows_of(shared, tenant) == before
    with shared.database.reading() as connection:
        found = outcomes.versions(connection, Scope(tenant), new.id)
    assert [version.version for version in found] == list(range(1, latest + 1))


def test_of_two_that_rescore_at_once_one_is_first(store: Store) -> None:
    new = outcome(store)
    recorded(store, new)
    answers = together(
        store, [again(new, 1, criteria_of(0.9)), again(new, 1, criteria_of(0.8)), record([outcome(store)])]
    )
    assert [len(answer) for answer in answers] == [1, 0, 1]
    with store.database.reading() as connection:
        assert outcomes.summary(connection, Scope("acme"), new.id).version == 2


def test_a_version_of_what_another_tenant_has_writes_nothing(store: Store) -> None:
    new = outcome(store)
    recorded(store, new)
    assert store.recorder.write(again(msgspec.structs.replace(new, tenant="other"), 1, criteria_of(0.9))) == []


# The audit log


LONG = 340
"""Outcomes: more than 600 entries, so that proofs reach over several tiles."""


@pytest.fixture(scope="module")
def long(shared: Store, new_tenant: NewTenant) -> Store:
    tenants = [new_tenant(), new_tenant()]
    made = [outcome(shared, tenants[index % 2], labels=Labels(f"c{index % 7}")) for index in range(LONG)]
    for start in range(0, LONG, 50):
        shared.recorder.write(record(made[start : start + 50]), sign_now=True)
    return shared


def test_the_log_is_the_tree_of_rfc_6962_over_its_entries(long: Store) -> None:
    with long.database.reading() as connection:
        leaves = leaves_of(connection)
        state = connection.execute(select(tables.log_state)).one()
        notes = connection.execute(select(tables.checkpoints).order_by(tables.checkpoints.c.size)).all()
        names = connection.execute(select(tables.log_keys.c.vkey)).scalars().all()
    assert len(leaves) > 600
    assert [leaf.seq for leaf in leaves] == list(range(state.size))
    assert all(leaf.hash == leaf_hash(leaf.body) for leaf in leaves)
    hashes = [leaf.hash for leaf in leaves]
    assert Frontier.from_bytes(state.size, state.peaks).root() == naive_root(hashes)
    assert names == [long.signer.vkey]
    assert len(notes) > 5
    for note in notes:
        checkpoint = open_checkpoint(note.note, long.signer.verifier)
        assert (checkpoint.origin, checkpoint.size) == (state.origin, note.size)
        assert checkpoint.root == naive_root(hashes[: note.size])


def test_the_entries_of_each_contract_are_numbered_without_a_gap(long: Store) -> None:
    numbers: dict[tuple[str, str], list[int]] = {}
    with long.database.reading() as connection:
        for leaf in leaves_of(connection):
            entry = read_entry(leaf.body)
            if leaf.contract_id is not None:
                assert isinstance(entry, EvidenceEntry | VerdictEntry)
                assert (entry.tenant, entry.contract) == (leaf.tenant, leaf.contract_id)
                assert entry.contract_seq == leaf.contract_seq
                numbers.setdefault((leaf.tenant, leaf.contract_id), []).append(leaf.contract_seq)
        for (tenant, contract), found in numbers.items():
            assert found == list(range(1, len(found) + 1))
            assert audit.last_in_contract(connection, tenant, contract) == len(found)


@settings(max_examples=60)
@given(data=st.data())
def test_every_entry_and_every_earlier_log_can_be_proved(long: Store, data: st.DataObject) -> None:
    with long.database.reading() as connection:
        log = audit.log_size(connection)
        size = data.draw(st.integers(1, log) | st.sampled_from([256, 257, 511, 512, 513, log]), "size")
        old = data.draw(st.integers(0, size), "old")
        index = data.draw(st.integers(0, size - 1), "index")
        hashes = connection.execute(select(tables.log_leaves.c.hash).order_by(tables.log_leaves.c.seq)).scalars().all()
        root = naive_root(hashes[:size])
        included = inclusion_proof(index, size, Tiles(connection).subtree)
        consistent = audit.proof_of_consistency(connection, old, size)
    assert is_included(hashes[index], index, size, included, root)
    assert is_consistent(old, size, consistent, naive_root(hashes[:old]), root)


def test_the_checkpoint_that_covers_an_entry_is_the_first_after_it(long: Store) -> None:
    with long.database.reading() as connection:
        sizes = list(
            connection.execute(select(tables.checkpoints.c.size).order_by(tables.checkpoints.c.size)).scalars()
        )
        for size in (0, 1, 100, sizes[-1]):
            found = audit.checkpoint_covering(connection, size)
            assert found is not None
            assert found.size == min(other for other in sizes if other >= size)
        latest = audit.best_witnessed(connection, 0)
        assert latest is not None
        assert latest.size == sizes[-1]
        assert audit.checkpoint_covering(connection, audit.log_size(connection) + 1) is None


def test_a_log_that_nobody_adds_to_can_be_signed_as_it_is(store: Store) -> None:
    recorded(store, outcome(store))
    recorded(store, outcome(store))
    store.recorder.write(audit.write_nothing, sign_now=True)
    store.recorder.write(audit.write_nothing, sign_now=True)
    with store.database.reading() as connection:
        size = audit.log_size(connection)
        latest = audit.best_witnessed(connection, 0)
        age = audit.checkpoint_age_micros(connection, 0)
    assert latest is not None
    assert (latest.size, open_checkpoint(latest.note, store.signer.verifier).size) == (size, size)
    assert age < 0


def test_a_log_that_was_tampered_with_proves_nothing(store: Store) -> None:
    recorded(store, *(outcome(store) for _ in range(5)))
    with store.database.writer.begin() as connection:
        connection.execute(tables.log_leaves.delete().where(tables.log_leaves.c.seq == 2))
    with store.database.reading() as connection, pytest.raises(StoreError, match=" lacks 1 of "):
        inclusion_proof(0, 8, Tiles(connection).subtree)


def test_each_key_that_signs_is_in_the_log_before_it_does(store_location: Location) -> None:
    first = Store.open(store_location)
    root = SigningKey.generate("meruit-root", bytes(32))
    first.admit_key(first.signer, root.vkey, "", role="root")
    first.close()
    (store_location.folder / "audit-key.pem").unlink()
    second = Store.open(store_location, new_key=True)
    try:
        assert second.signer.vkey != first.signer.vkey
        second.admit_key(root, second.signer.vkey, "")
        with second.database.reading() as connection:
            assert [json.loads(leaf.body)["vkey"] for leaf in leaves_of(connection)] == [
                first.signer.vkey,
                root.vkey,
                second.signer.vkey,
            ]
    finally:
        second.close()


def test_a_signing_key_that_cannot_be_read_is_refused(store_location: Location) -> None:
    store_location.folder.mkdir()
    (store_location.folder / "audit-key.pem").write_bytes(b"garbage")
    with pytest.raises(MeruitError, match="key"):
        Store.open(store_location)


# Events


def test_each_thing_that_happens_is_told_once_and_in_order(store: Store) -> None:
    new = outcome(store, labels=Labels("c1", "a1", "u1", "d1"))
    recorded(store, new)
    store.recorder.write(again(new, 1, criteria_of(0.9)))
    store.recorder.write(
        criteria.RegisterCriteria("acme", "n", body_of(CRITERIA), new.result.criteria_digest or "", "")
    )
    made = store.recorder.write(keys.NewKey("acme", Role.ADMIN, "k", None, None, os.urandom))
    store.recorder.write(keys.Revoke(made.key.id, "acme"))
    with store.database.reading() as connection:
        events = connection.execute(select(tables.events).order_by(tables.events.c.seq)).all()
        state = connection.execute(select(tables.log_state)).one()
    assert [event.seq for event in events] == list(range(1, state.events + 1))
    assert len({event.event_id for event in events}) == len({event.idempotency_key for event in events}) == 5
    assert [(event.type, event.subject) for event in events] == [
        (EventType.OUTCOME_RECORDED, "c1"),
        (EventType.OUTCOME_RESCORED, "c1"),
        (EventType.CRITERIA_REGISTERED, "criteria/n"),
        (EventType.KEY_CREATED, f"key/{made.key.id}"),
        (EventType.KEY_REVOKED, f"key/{made.key.id}"),
    ]
    first = msgspec.json.decode(events[0].data)
    assert first["outcome_id"] == new.id
    assert first["agent_id"] == "a1"
    assert made.secret.encode() not in b"".join(event.data for event in events)


def test_a_record_and_its_event_are_there_together_or_not_at_all(store: Store) -> None:
    def failing(writing: WriteTransaction) -> None:
        record([outcome(store)])(writing)
        # Two rows of one key: the database refuses the whole transaction.
        writing.insert(
            tables.cursors,
            consumer="c",
            seq=1,
        )
        writing.insert(
            tables.cursors,
            consumer="c",
            seq=2,
        )

    with pytest.raises(StoreError, match="contradicts"):
        store.recorder.write(failing)
    assert set(rows_of(store, "acme").values()) == {0}
    assert opening.status(store.database.location).events == 0


# Keys


def issued(store: Store, role: Role = Role.OPERATOR, agent: str | None = None, **more: Any) -> keys.IssuedKey:
    expires: datetime | None = more.get("expires_at")
    return store.recorder.write(keys.NewKey(more.get("tenant", "acme"), role, "a key", agent, expires, os.urandom))


def admitted(store: Store, presented: str, now: datetime | None = None) -> Caller | None:
    with store.database.reading() as connection:
        return keys.caller(connection, presented, now or datetime.now(UTC), store.trusted)


def test_a_key_lets_its_caller_in(store: Store) -> None:
    with store.database.reading() as connection:
        assert not keys.any_exists(connection)
    made = issued(store, Role.AGENT, "a1")
    assert admitted(store, made.secret) == Caller("acme", Role.AGENT, made.key.id, "a1")
    with store.database.reading() as connection:
        assert keys.any_exists(connection)
        assert keys.page(connection, tenant="acme") == [made.key]
        row = connection.execute(select(tables.keys)).one()
    secret = made.secret.split(".")[1]
    assert row.secret_hash == sha256(secret.encode()).digest()
    assert not any(secret in str(value) for value in row)


def test_anything_but_a_key_in_force_lets_nobody_in(store: Store) -> None:
    made, other = issued(store), issued(store)
    secrets = [one.secret.split(".")[1] for one in (made, other)]
    wrong = ["", made.key.id, f"{made.key.id}.", f"{made.key.id}.{secrets[1]}", f"mk_000000000000.{secrets[0]}"]
    assert [admitted(store, one) for one in [*wrong, f"{made.secret}\n", f" {made.secret}"]] == [None] * 7


CHANGED_KEYS: dict[str, dict[str, Any]] = {
    "role": {"role": "admin"},
    "tenant": {"tenant": "another"},
    "agent": {"agent_id": "a2"},
    "expiry": {"expires_at": None},
    "secret": {"secret_hash": sha256(b"x" * 43).digest()},
}


@pytest.mark.parametrize("what", CHANGED_KEYS)
def test_a_key_that_the_log_does_not_know_lets_nobody_in(store: Store, what: str) -> None:
    made = issued(store, Role.AGENT, "a1", expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.keys).values(**CHANGED_KEYS[what]))
    presented = f"{made.key.id}.{'x' * 43}" if what == "secret" else made.secret
    assert admitted(store, presented) is None
    assert [one.where for one in check_store(store).problems] == [f"keys {made.key.id}"]


def test_a_key_that_is_added_to_the_rows_alone_lets_nobody_in(store: Store) -> None:
    with store.database.writer.begin() as connection:
        row = {"id": "mk_0123456789ab", "secret_hash": sha256(b"x" * 43).digest(), "tenant": "acme", "role": "admin"}
        connection.execute(insert(tables.keys).values(**row, name="mine", created_at=1))
    assert admitted(store, f"mk_0123456789ab.{'x' * 43}") is None
    assert [one.where for one in check_store(store).problems] == ["keys mk_0123456789ab"]


def test_a_revoked_key_is_not_brought_back_by_its_row(store: Store) -> None:
    made = issued(store)
    store.recorder.write(keys.Revoke(made.key.id, None))
    assert check_store(store).sound
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.keys).values(revoked_at=None))
    assert admitted(store, made.secret) is None
    assert [one.where for one in check_store(store).problems] == [f"keys {made.key.id}"]


def test_a_revoked_key_lets_nobody_in(store: Store) -> None:
    made, other = issued(store), issued(store)
    revoked = store.recorder.write(keys.Revoke(made.key.id, "acme"))
    assert revoked.revoked_at is not None
    assert admitted(store, made.secret) is None
    assert admitted(store, other.secret) is not None
    assert store.recorder.write(keys.Revoke(made.key.id, None)) == revoked
    with pytest.raises(NotFound):
        store.recorder.write(keys.Revoke(other.key.id, "another"))
    assert rows_of(store, "acme")["events"] == 3


def test_a_key_revoked_twice_at_once_is_told_of_once(store: Store) -> None:
    made = issued(store)
    together(store, [keys.Revoke(made.key.id, "acme"), keys.Revoke(made.key.id, "acme")])
    with store.database.reading() as connection:
        told = connection.execute(select(tables.events.c.type).order_by(tables.events.c.seq)).scalars().all()
    assert told == [EventType.KEY_CREATED, EventType.KEY_REVOKED]


def test_a_key_lets_in_until_the_moment_it_expires(store: Store) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    made = issued(store, expires_at=moment)
    assert admitted(store, made.secret, moment - timedelta(microseconds=1)) is not None
    assert admitted(store, made.secret, moment) is None
    with store.database.reading() as connection:
        assert keys.page(connection, tenant=None)[0].expires_at == moment


@pytest.mark.parametrize(
    ("role", "agent", "tenant"),
    [(Role.AGENT, None, "acme"), (Role.ADMIN, "a1", "acme"), (Role.ADMIN, None, "Acme/.."), (Role.ADMIN, None, "")],
)
def test_what_cannot_be_a_key_is_refused(store: Store, role: Role, agent: str | None, tenant: str) -> None:
    with pytest.raises(MeruitError, match=r"tenant|agent"):
        issued(store, role, agent, tenant=tenant)
    with store.database.reading() as connection:
        assert not keys.any_exists(connection)


def test_keys_are_listed_by_tenant_and_in_pages(store: Store) -> None:
    for index in range(5):
        issued(store, tenant=f"t{index % 2}")
    with store.database.reading() as connection:
        everyone = keys.page(connection, tenant=None)
        assert Counter(key.tenant for key in everyone) == {"t0": 3, "t1": 2}
        assert len(keys.page(connection, tenant="t1")) == 2
        assert keys.page(connection, tenant=None, after=everyone[1].id, limit=2) == everyone[2:4]


# Named criteria


def register(tenant: str, name: str, threshold: float) -> criteria.RegisterCriteria:
    body = body_of(criteria_of(threshold))
    return criteria.RegisterCriteria(tenant, name, body, criteria_digest_of(body), "key")


@EXAMPLES
@given(thresholds=st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=8), at_one_time=st.booleans())
def test_criteria_get_a_new_version_when_they_change(
    shared: Store, new_tenant: NewTenant, thresholds: list[float], at_one_time: bool
) -> None:
    tenant = new_tenant()
    writes = [register(tenant, "n", threshold) for threshold in thresholds]
    answers = together(shared, writes) if at_one_time else [shared.recorder.write(write) for write in writes]
    changed = [thresholds[0], *(new for old, new in pairwise(thresholds) if old != new)]
    with shared.database.reading() as connection:
        found = criteria.history(connection, tenant, "n")
        assert [named.version for named in found] == list(range(len(changed), 0, -1))
        assert [named.digest for named in reversed(found)] == [register(tenant, "n", one).digest for one in changed]
        assert criteria.find(connection, tenant, "n") == found[0] == answers[-1]
        assert criteria.find(connection, tenant, "n", 1) == found[-1] == answers[0]
    assert rows_of(shared, tenant)["events"] == len(changed)
    assert rows_of(shared, tenant)["criteria"] == len(set(thresholds))


def test_threads_that_register_one_name_get_versions_of_their_own(store: Store) -> None:
    answers = at_once(AT_ONCE, lambda index: store.recorder.write(register("acme", "n", index / 16)))
    assert sorted(answer.version for answer in answers) == list(range(1, AT_ONCE + 1))
    assert len({answer.digest for answer in answers}) == AT_ONCE


def test_registering_again_with_one_key_is_answered_as_before(store: Store) -> None:
    def write() -> Write[Any]:
        request = IdempotentRequest("k", "f", 201)
        return IdempotentWrite("acme", request, register("acme", "n", 0.5), lambda _: b"reply")

    first = store.recorder.write(write())
    assert isinstance(first, criteria.NamedCriteria)
    assert store.recorder.write(write()) == IdempotentReplay(201, b"reply")


def test_names_are_listed_in_pages_with_their_latest_version(store: Store) -> None:
    for name in ("b", "a", "c", "a"):
        store.recorder.write(register("acme", name, ord(name) / 200 if name != "a" else os.getpid() % 7 / 10 + 0.01))
    store.recorder.write(register("acme", "a", 0.99))
    with store.database.reading() as connection:
        pages = [criteria.page(connection, "acme", limit=2), criteria.page(connection, "acme", after="b", limit=2)]
        assert [[(named.name, named.version) for named in page] for page in pages] == [[("a", 2), ("b", 1)], [("c", 1)]]
        with pytest.raises(NotFound, match="'z'"):
            criteria.history(connection, "acme", "z")
        with pytest.raises(NotFound, match="in version 9"):
            criteria.find(connection, "acme", "a", 9)


# Evidence


def test_large_evidence_is_read_back(store: Store) -> None:
    large = {"text": "the cat " * 20_000}
    new = outcome(store, work_output=large)
    recorded(store, new)
    assert (new.output.file is not None) == (store.database.location.kind == "sqlite")
    with store.database.reading() as connection:
        assert outcomes.full_record(connection, Scope("acme"), new.id, store.blobs).work_output == large
        row = connection.execute(select(tables.blobs).where(tables.blobs.c.address == new.output.address)).one()
    assert (row.content is None) == (new.output.file is not None)
    assert row.size == len(new.output.content)


def test_evidence_that_was_changed_is_noticed(store: Store) -> None:
    new = outcome(store)
    recorded(store, new)
    with store.database.writer.begin() as connection:
        connection.execute(tables.blobs.update().values(content=b"{}"))
    with store.database.reading() as connection, pytest.raises(StoreError, match=" changed "):
        outcomes.evidence(connection, Scope("acme"), new.id, store.blobs)


def test_evidence_that_is_gone_is_noticed(store: Store) -> None:
    new = outcome(store)
    recorded(store, new)
    with store.database.writer.begin() as connection:
        connection.execute(tables.blobs.delete())
    with store.database.reading() as connection, pytest.raises(StoreError, match=" not in "):
        outcomes.evidence(connection, Scope("acme"), new.id, store.blobs)


# A database that goes away


@contextmanager
def away(store: Store) -> Iterator[None]:
    """The database takes nothing: a full disk, or a server that lets nobody in."""
    url = store.database.location.url
    if url is None:
        with store.database.writing() as connection:
            ((pages,),) = connection.fetch("PRAGMA page_count")
            connection.run(f"PRAGMA max_page_count = {pages}")
        yield
        with store.database.writing() as connection:
            connection.run("PRAGMA max_page_count = 1000000")
        return
    name = url.split("@/")[1].split("?")[0]
    server = Server(Path(url.split("host=")[1]))
    server.ask(
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    yield
    server.ask(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def test_a_database_that_goes_away_is_told_of_and_used_again_when_it_is_back(store: Store) -> None:
    recorded(store, outcome(store))
    big = [outcome(store, work_output={"text": os.urandom(30_000).hex()}) for _ in range(3)]
    with away(store):
        refused = together(store, [record([one]) for one in big])
        assert [type(answer) for answer in refused] == [StoreUnavailable] * 3, refused
    assert [type(answer) for answer in together(store, [record([one]) for one in big])] == [list] * 3
    assert rows_of(store, "acme")["outcomes"] == 4
    with store.database.reading() as connection:
        hashes = [leaf.hash for leaf in leaves_of(connection)]
        state = connection.execute(select(tables.log_state)).one()
        assert Frontier.from_bytes(state.size, state.peaks).root() == naive_root(hashes)


def test_what_is_refused_says_where_and_keeps_the_password(store: Store) -> None:
    with away(store):
        (refused,) = together(store, [record([outcome(store, work_output={"t": os.urandom(30_000).hex()})])])
    assert store.database.location.display_name in str(refused)


def test_a_connection_lost_in_a_transaction_costs_that_transaction_only(postgres_url: str, tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path, postgres_url))

    def losing(writing: WriteTransaction) -> None:
        pid = writing.read(select(func.pg_backend_pid()))[0][0]
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])

    try:
        one = outcome(store)
        refused = together(store, [losing, record([one])])
        assert [type(answer) for answer in refused] == [StoreUnavailable] * 2, refused
        recorded(store, one)
        assert rows_of(store, "acme")["outcomes"] == 1
    finally:
        store.close()


# Time and chance


def test_ids_are_in_the_order_of_time(store: Store) -> None:
    early = ClockAndEntropy(clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)).new_id("out")
    late = ClockAndEntropy(clock=lambda: datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)).new_id("out")
    assert early < late
    assert len({store.surroundings.new_id("out") for _ in range(1000)}) == 1000
