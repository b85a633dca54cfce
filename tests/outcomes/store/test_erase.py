"""What is erased is gone for good; what the log said of it stays, and so does everybody else's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.outcomes.making import outcome, record, recorded, together

from meruit.errors import IdempotencyConflict, NotFound
from meruit.log.entries import ErasureEntry, read_entry
from meruit.model.access import Scope
from meruit.model.events import EventType
from meruit.model.outcome import Labels
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.erase import Discard, Erase, erase
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.store.location import Location
from meruit.store.store import Store

WHY = "the patient asked"


@pytest.fixture
def store(store_location: Location) -> Iterator[Store]:
    opened = Store.open(store_location)
    yield opened
    opened.close()


def kept(store: Store) -> dict[str, int]:
    """Every piece of evidence, and how often it is referred to."""
    with store.database.reading() as connection:
        rows = connection.execute(select(tables.blobs.c.address, tables.blobs.c.refs))
        return {row.address: row.refs for row in rows}


def entries(store: Store, contract: str) -> list[object]:
    with store.database.reading() as connection:
        last = audit.last_in_contract(connection, "acme", contract)
        return [read_entry(leaf.body) for leaf in audit.window(connection, "acme", contract, 1, last)]


def events(store: Store) -> list[str]:
    with store.database.reading() as connection:
        return [*connection.execute(select(tables.events.c.type).order_by(tables.events.c.seq)).scalars()]


def test_the_work_and_the_results_go_and_the_log_says_so(store: Store) -> None:
    (at,) = recorded(store, outcome(store))
    erased = erase(store, "acme", at.outcome_id, WHY)
    assert erased.parts == ("input", "output", "metadata", "result")
    with store.database.reading() as connection:
        work = outcomes.evidence(connection, Scope("acme"), at.outcome_id, store.blobs)
        (version,) = outcomes.versions(connection, Scope("acme"), at.outcome_id)
        row = connection.execute(select(tables.outcomes)).one()
        salt = connection.execute(select(tables.verdicts.c.salt)).scalar_one()
    assert work == (None, None, None)
    assert version.result is None
    assert (row.input_salt, row.output_salt, row.metadata_salt, salt) == (None, None, None, None)
    assert kept(store) == {}
    last = entries(store, at.outcome_id)[-1]
    assert isinstance(last, ErasureEntry)
    assert (last.contract_seq, last.parts, last.reason) == (3, erased.parts, WHY)
    assert events(store)[-1] == EventType.OUTCOME_ERASED


def test_a_second_time_does_nothing(store: Store) -> None:
    (at,) = recorded(store, outcome(store))
    erase(store, "acme", at.outcome_id, WHY)
    told = events(store)
    again = erase(store, "acme", at.outcome_id, WHY)
    assert (again.parts, again.addresses) == ((), ())
    assert len(entries(store, at.outcome_id)) == 3
    assert events(store) == told


def test_two_at_once_erase_once(store: Store) -> None:
    """Neither sees what the other is about to write, and each piece is let go of once."""
    first, second = outcome(store), outcome(store)
    recorded(store, first, second)
    answers = together(store, [Erase("acme", first.id, WHY)] * 2)
    assert [bool(answer.parts) for answer in answers] == [True, False]
    assert {*kept(store).values()} == {1}
    assert len(entries(store, first.id)) == 3


def test_what_others_refer_to_stays(store: Store) -> None:
    mine = outcome(store, labels=Labels("c-1"), work_output={"text": "mine"})
    other = outcome(store, labels=Labels("c-1"))
    recorded(store, mine, other)
    erase(store, "acme", mine.id, WHY)
    with store.database.reading() as connection:
        work = outcomes.evidence(connection, Scope("acme"), other.id, store.blobs)
    assert None not in work
    assert mine.output.address not in kept(store)
    assert {*kept(store).values()} == {1}


def test_equal_parts_of_one_outcome_are_let_go_of_one_by_one(store: Store) -> None:
    (at,) = recorded(store, outcome(store, work_input={}, work_output={}, metadata={}))
    assert [*kept(store).values()] == [3]
    erase(store, "acme", at.outcome_id, WHY)
    assert kept(store) == {}


def test_nobody_erases_what_is_not_his(store: Store) -> None:
    (at,) = recorded(store, outcome(store))
    for tenant, outcome_id in (("acme", "out_none"), ("other", at.outcome_id)):
        with pytest.raises(NotFound):
            erase(store, tenant, outcome_id, WHY)
    assert len(entries(store, at.outcome_id)) == 2


def test_a_file_goes_when_nobody_refers_to_it(tmp_path: Path) -> None:
    big = {"text": "the cat", "pad": "x" * 100_000}
    store = Store.open(Location(tmp_path))
    try:
        first, second = outcome(store, work_output=big), outcome(store, work_output=big)
        recorded(store, first, second)
        files = [file for file in (tmp_path / "blobs").rglob("*") if file.is_file()]
        assert [file.name for file in files] == [first.output.address]
        erase(store, "acme", first.id, WHY)
        assert files[0].exists()
        erase(store, "acme", second.id, WHY)
        assert not files[0].exists()
    finally:
        store.close()


def test_an_erasure_that_is_refused_leaves_the_others_of_its_group_alone(store: Store) -> None:
    (at,) = recorded(store, outcome(store))
    refused, done = together(store, [Erase("acme", "out_none", WHY), Erase("acme", at.outcome_id, WHY)])
    assert isinstance(refused, NotFound)
    assert done.parts


def test_a_version_that_comes_after_an_erasure_is_not_written(store: Store) -> None:
    new = outcome(store)
    (at,) = recorded(store, new)
    erase(store, "acme", at.outcome_id, WHY)
    later = AddVersions("acme", new.criteria, (NewVersion(at.outcome_id, 1, new.result, b"s" * 16),), "late")
    assert store.recorder.write(later) == []


def test_the_kept_answer_of_an_erased_outcome_is_erased_with_it(store: Store) -> None:
    new, once = outcome(store), IdempotentRequest("key-1", "f", 200)
    store.recorder.write(record([new], once, "acme", b"the answer"))
    erase(store, "acme", new.id, WHY)
    replay = store.recorder.write(record([outcome(store)], once, "acme"))
    assert isinstance(replay, IdempotentReplay)
    assert replay.status == 410
    assert b"the answer" not in replay.reply


def test_what_was_erased_can_be_recorded_again(store: Store) -> None:
    big = {"text": "long " * 20_000}
    first, second = outcome(store, work_output=big), outcome(store, work_output=big)
    recorded(store, first)
    # The second one's evidence was ready before the first was erased.
    erase(store, "acme", first.id, WHY)
    recorded(store, second)
    with store.database.reading() as connection:
        found = outcomes.evidence(connection, Scope("acme"), second.id, store.blobs)
    assert found.output == second.output.content


def test_two_erasures_at_once_of_what_two_outcomes_share_leave_no_file(store: Store) -> None:
    big = {"text": "long " * 20_000}
    first, second = outcome(store, work_output=big), outcome(store, work_output=big)
    recorded(store, first, second)
    both = together(store, [Erase("acme", first.id, WHY), Erase("acme", second.id, WHY)])
    for erased in both:
        store.recorder.write(Discard("acme", erased.addresses, store.blobs))
    assert [file for file in store.database.location.folder.glob("blobs/**/*") if file.is_file()] == []


def test_a_refused_record_puts_no_erased_file_back(store: Store) -> None:
    big = {"text": "long " * 20_000}
    first, second = outcome(store, work_output=big), outcome(store, work_output=big)
    recorded(store, first)
    erase(store, "acme", first.id, WHY)
    once = IdempotentRequest("key-2", "f", 200)
    store.recorder.write(record([outcome(store)], once, "acme"))
    with pytest.raises(IdempotencyConflict):
        store.recorder.write(record([second], IdempotentRequest("key-2", "other", 200), "acme"))
    assert [file for file in store.database.location.folder.glob("blobs/**/*") if file.is_file()] == []


def test_a_version_in_the_group_of_an_erasure_is_not_written(store: Store) -> None:
    new = outcome(store)
    (at,) = recorded(store, new)
    later = AddVersions("acme", new.criteria, (NewVersion(at.outcome_id, 1, new.result, b"s" * 16),), "late")
    _, written = together(store, [Erase("acme", at.outcome_id, WHY), later])
    assert written == []


def test_nobody_else_may_read_what_is_kept(store: Store) -> None:
    recorded(store, outcome(store, work_output={"text": "long " * 20_000}))
    for file in store.database.location.folder.glob("**/*"):
        if file.is_file():
            assert file.stat().st_mode & 0o077 == 0, file
