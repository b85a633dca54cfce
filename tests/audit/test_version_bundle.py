"""A version in a segment is proven alone, erased alone, checked with its rows, and every forgery of it is found."""

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update
from tests.outcomes.making import ENGINE, body_of, criteria_of, outcome, recorded, together

from meruit.audit.bundle import CaseReceipt, Entries, LoggedEntry, Receipt, VersionsFile, pack_files, unpack
from meruit.audit.check import check_store
from meruit.audit.export import export, receipt
from meruit.audit.verify.outcome import verify_bundle
from meruit.audit.verify.receipt import verify_receipt
from meruit.errors import BundleFlaw, RecordTampered, StoreError
from meruit.log.entries import EvidenceEntry, VerdictEntry, VersionSegmentEntry, read_entry
from meruit.log.segment import read_version, version_bytes
from meruit.model.access import Scope
from meruit.model.outcome import Labels
from meruit.outcomes.rescore.run import LocalRunner, Skip, rescore
from meruit.outcomes.segment import open_versions, pack, pack_version
from meruit.outcomes.store import batches, versions
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.erase import Erase, erase
from meruit.outcomes.store.together import RecordTogether
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.store import tables
from meruit.store.blobs import in_database
from meruit.store.location import Location
from meruit.store.store import Store

TENANT, SCOPE = "acme", Scope("acme")
NOW = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def records(store_location: Location) -> Iterator[Store]:
    opened = Store.open(store_location)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few outcomes."""
    monkeypatch.setattr(versions, "MIN_RUN", 1)


def make_outcomes(store: Store, *contracts: str | None) -> list[str]:
    """One outcome for each contract, each recorded with entries of its own."""
    made = []
    for number, contract in enumerate(contracts):
        text = "the cat" if number % 2 else "the cat sat"
        new = outcome(store, work_output={"text": text, "n": number}, labels=Labels(contract))
        result = msgspec.structs.replace(new.result, contract_id=contract or new.id)
        made.append(msgspec.structs.replace(new, result=result))
    return [one.outcome_id for one in recorded(store, *made)]


def rescored(store: Store, threshold: float = 0.9) -> int:
    """Rescore all, and say how many entries the log got."""
    before = size_of(store)
    rescore(
        store,
        ENGINE,
        TENANT,
        criteria_of(threshold),
        narrowed=None,
        reason="stricter",
        runner=LocalRunner(),
        now=NOW,
        progress=lambda _done, _total: None,
    )
    return size_of(store) - before


def add_version(store: Store, outcome_id: str, expected: int) -> None:
    """One more version, with an entry of its own."""
    rules = criteria_of(0.2)
    result = ENGINE.verify_sync(
        "shared", {"reference": "the cat sat"}, {"text": "the cat sat", "n": 0}, rules, {"duration_ms": 12}
    )
    new = NewVersion(outcome_id, expected, result, b"s" * 16)
    written = store.recorder.write(AddVersions(TENANT, body_of(rules), (new,), "again"))
    assert [done.version for done in written] == [expected + 1]


def size_of(store: Store) -> int:
    with store.database.reading() as connection:
        return int(connection.execute(select(tables.log_state.c.size)).scalar_one())


def failed_step(files: Mapping[str, bytes]) -> str | None:
    return verify_bundle(pack_files(files)).failed


def test_a_rescore_adds_one_entry_and_one_event(records: Store) -> None:
    ids = make_outcomes(records, None, None, "shared", "shared", 'ünï "c"')
    # The criteria and the segment.
    assert rescored(records) == 2
    with records.database.reading() as connection:
        event = connection.execute(select(tables.events).order_by(tables.events.c.seq.desc()).limit(1)).one()
        run = connection.execute(select(tables.verdict_runs)).one()
        rows = connection.execute(select(tables.verdicts).where(tables.verdicts.c.version == 2)).all()
        seqs = connection.execute(select(tables.outcomes.c.seq).order_by(tables.outcomes.c.seq)).scalars().all()
    data = msgspec.json.decode(event.data)
    assert (event.type, data["reason"], data["leaf"]) == ("outcomes.rescored", "stricter", run.leaf)
    assert [one["outcome_id"] for one in data["outcomes"]] == ids
    assert {(one["version"], one["verdict"], one["success"]) for one in data["outcomes"]} == {
        (2, "pass", True),
        (2, "fail", False),
    }
    assert (run.first_seq, run.last_seq, run.version, run.offsets, rows) == (seqs[0], seqs[-1], 2, None, [])


def test_each_version_is_proven_by_a_bundle_of_its_own(records: Store) -> None:
    ids = make_outcomes(records, None, "shared", "shared", 'ünï "c"')
    rescored(records)
    rescored(records, 0.3)
    for one in ids:
        files = unpack(export(records, SCOPE, one))
        found = verify_bundle(pack_files(files))
        assert found.failed is None, found
        assert {"verdicts/1.json", "verdicts/2.json", "verdicts/3.json", "versions.json"} <= files.keys()
        # The entries of a shared contract name its other outcomes, as they always did; segments do not.
        held = b"".join(proof.entry for proof in VersionsFile.from_json(files["versions.json"]).versions.values())
        assert not any(other.encode() in held for other in ids if other != one)


def test_versions_of_both_kinds_follow_each_other(records: Store) -> None:
    (one,) = make_outcomes(records, "shared")
    rescored(records)
    with records.database.reading() as connection:
        (_, second) = outcomes.versions(connection, SCOPE, one)
    assert second.result is not None
    add_version(records, one, 2)
    rescored(records, 0.3)
    assert verify_bundle(export(records, SCOPE, one)).failed is None
    with records.database.reading() as connection:
        assert [found.version for found in outcomes.versions(connection, SCOPE, one)] == [1, 2, 3, 4]


def test_a_receipt_leads_from_the_version_to_a_signed_checkpoint(records: Store) -> None:
    first, second = make_outcomes(records, None, None)
    rescored(records)
    assert isinstance(receipt(records, SCOPE, first, 1), Receipt)
    found = receipt(records, SCOPE, second)
    assert isinstance(found, CaseReceipt)
    proven = verify_receipt(found.to_json())
    assert (proven.outcome, proven.version, proven.verdict) == (second, 2, "fail")
    other = receipt(records, SCOPE, first)
    assert isinstance(other, CaseReceipt)
    held = read_version(found.case.entry)
    forged = (
        msgspec.structs.replace(found, case=other.case),
        msgspec.structs.replace(found, case=msgspec.structs.replace(found.case, place=0)),
        msgspec.structs.replace(found, case=msgspec.structs.replace(found.case, entry=b"{}")),
        msgspec.structs.replace(found, case=msgspec.structs.replace(found.case, entry=found.case.entry + b" ")),
        msgspec.structs.replace(
            found,
            case=msgspec.structs.replace(
                found.case, entry=version_bytes(msgspec.structs.replace(held, verdict="pass"))
            ),
        ),
    )
    for one in forged:
        with pytest.raises(BundleFlaw):
            verify_receipt(one.to_json())


def test_every_forgery_is_found(records: Store) -> None:
    mine, other = make_outcomes(records, None, None)
    rescored(records)
    rescored(records, 0.3)
    files, foreign = unpack(export(records, SCOPE, mine)), unpack(export(records, SCOPE, other))
    proofs = VersionsFile.from_json(files["versions.json"]).versions
    first, second = proofs
    held = proofs[first]
    entry = read_version(held.entry)

    def changed(**parts: object) -> dict[str, bytes]:
        return {"versions.json": VersionsFile({**proofs, first: msgspec.structs.replace(held, **parts)}).to_json()}

    forged = {
        "another result": {"verdicts/2.json": files["verdicts/3.json"]},
        "another outcome's": {"versions.json": foreign["versions.json"]},
        "another place": changed(place=held.place + 1),
        "no proof": changed(proof=[held.entry]),
        "no entry": changed(entry=b"{}"),
        "not as written": changed(entry=held.entry + b" "),
        "another verdict": changed(entry=version_bytes(msgspec.structs.replace(entry, verdict="partial"))),
        "its own evidence": changed(entry=version_bytes(msgspec.structs.replace(entry, evidence_index=None))),
        "one left out": {"versions.json": VersionsFile({first: held}).to_json()},
        "none": {"versions.json": VersionsFile({}).to_json()},
        "twice the same": {"versions.json": VersionsFile({first: held, second: held}).to_json()},
    }
    assert failed_step(files) is None
    for name, parts in forged.items():
        assert failed_step({**files, **parts}) is not None, name
    assert failed_step({name: content for name, content in files.items() if name != "versions.json"}) is not None


def test_one_outcome_is_erased_and_its_neighbours_stay(records: Store) -> None:
    gone, stays = make_outcomes(records, None, "shared")
    rescored(records)
    rescored(records, 0.3)
    before = unpack(export(records, SCOPE, gone))
    assert "result" in erase(records, TENANT, gone, "asked to").parts
    assert erase(records, TENANT, gone, "asked again").parts == ()
    erased = unpack(export(records, SCOPE, gone))
    assert verify_bundle(pack_files(erased)).failed is None
    assert not any(name.startswith(("work/", "verdicts/")) for name in erased)
    assert failed_step({**erased, "verdicts/2.json": before["verdicts/2.json"]}) is not None
    assert verify_bundle(export(records, SCOPE, stays)).failed is None
    with records.database.reading() as connection:
        assert [one.result for one in outcomes.versions(connection, SCOPE, gone)] == [None, None, None]
        content = b"".join(
            bytes(row) for row in connection.execute(select(tables.blobs.c.content)).scalars() if row is not None
        )
    found = check_store(records)
    assert found.problems == []
    # What is erased is not found in any blob, compressed or not.
    assert bytes.fromhex(before["salts.json"].decode().split('"2":"')[1][:32]) not in content
    # It is not rescored either.
    rescored(records, 0.4)
    with records.database.reading() as connection:
        assert len(outcomes.versions(connection, SCOPE, gone)) == 3
        assert len(outcomes.versions(connection, SCOPE, stays)) == 4


def test_neighbours_erased_in_one_group_both_go(records: Store) -> None:
    ids = make_outcomes(records, None, None, None)
    rescored(records)
    together(records, [Erase(TENANT, one, "asked to") for one in ids[:2]])
    with records.database.reading() as connection:
        found = [[one.result is None for one in outcomes.versions(connection, SCOPE, name)] for name in ids]
    assert found == [[True, True], [True, True], [False, False]]
    assert check_store(records).problems == []


def _change(store: Store, statement: object) -> None:
    def write(writing: object) -> None:
        writing._connection.execute(statement)  # type: ignore[attr-defined]

    store.recorder.write(write)


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(verdict="partial"),
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(score=0.25),
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(place=0),
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(place=None),
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(reason="none"),
        lambda leaf: update(tables.verdicts).where(tables.verdicts.c.leaf == leaf).values(result=b"{}"),
        lambda leaf: tables.verdicts.delete().where(tables.verdicts.c.leaf == leaf),
        lambda leaf: tables.verdict_segments.delete().where(tables.verdict_segments.c.leaf == leaf),
        lambda leaf: update(tables.verdict_segments).values(versions=1),
        lambda leaf: update(tables.verdict_segments).values(address="0" * 64),
        lambda leaf: update(tables.outcomes).values(version=1),
    ],
)
def test_rows_that_were_changed_are_named(records: Store, change: Callable[[int], object]) -> None:
    one, _ = make_outcomes(records, "shared", None)
    # Versions of several numbers form no run.
    add_version(records, one, 1)
    rescored(records)
    assert check_store(records).problems == []
    with records.database.reading() as connection:
        leaf = connection.execute(select(tables.verdict_segments.c.leaf)).scalar_one()
        assert isinstance(read_entry(_body(records, leaf)), VersionSegmentEntry)
    _change(records, change(leaf))
    assert check_store(records).problems != []


_runs = tables.verdict_runs


@pytest.mark.parametrize(
    "change",
    [
        update(_runs).values(first_seq=_runs.c.first_seq + 1),
        update(_runs).values(first_seq=_runs.c.first_seq + 1, last_seq=_runs.c.last_seq + 1),
        update(_runs).values(last_seq=_runs.c.last_seq + 1),
        update(_runs).values(version=3),
        update(_runs).values(leaf=0),
        update(_runs).values(criteria_digest="0" * 64),
        update(_runs).values(reason="none"),
        update(_runs).values(offsets=b"\0\0\0\2"),
        update(_runs).values(offsets=b""),
        update(_runs).values(offsets=b"\0"),
        update(_runs).values(tenant="other"),
        delete(_runs),
        update(tables.outcomes).values(seq=tables.outcomes.c.seq + 7),
        update(tables.outcomes).where(tables.outcomes.c.verdict == "fail").values(verdict="partial"),
        update(tables.verdict_segments).values(versions=1),
        delete(tables.verdict_segments),
    ],
)
def test_a_run_that_was_changed_is_named(records: Store, change: object) -> None:
    make_outcomes(records, None, None)
    rescored(records)
    assert check_store(records).problems == []
    _change(records, change)
    assert {problem.code for problem in check_store(records).problems} == {"row"}


def test_a_version_that_is_there_twice_is_named(records: Store) -> None:
    one, _ = make_outcomes(records, None, None)
    rescored(records)
    with records.database.reading() as connection:
        run = connection.execute(select(_runs)).one()
        first = connection.execute(select(tables.verdicts).where(tables.verdicts.c.outcome_id == one)).one()
    twice = {**first._mapping, "version": 2, "leaf": run.leaf, "criteria_digest": run.criteria_digest, "place": 0}
    twice |= {"reason": run.reason, "salt": None, "result": None}
    _change(records, insert(tables.verdicts).values(**twice))
    assert [problem.code for problem in check_store(records).problems] == ["row"]
    _change(records, tables.verdicts.delete().where(tables.verdicts.c.version == 2))
    assert check_store(records).problems == []
    shifted = {**run._mapping, "first_seq": run.first_seq - 1, "offsets": b"\0\1\0\2"}
    _change(records, insert(_runs).values(**shifted))
    assert {problem.code for problem in check_store(records).problems} == {"row"}


def test_outcomes_without_their_versions_are_not_left_out(records: Store) -> None:
    make_outcomes(records, None, None)
    rescored(records)
    _change(records, delete(_runs))
    with records.database.reading() as connection:
        page = outcomes.page(connection, SCOPE).entries
        for every in (False, True):
            with pytest.raises(RecordTampered):
                batches.versions(connection, TENANT, page, every=every)
    counted = rescore(
        records,
        ENGINE,
        TENANT,
        criteria_of(0.1),
        narrowed=None,
        reason="again",
        runner=LocalRunner(),
        now=NOW,
        progress=lambda _done, _total: None,
    )
    assert counted.skipped == {Skip.NO_VERSION: 2}


def test_no_outcome_inherits_the_result_of_another(records: Store) -> None:
    make_outcomes(records, None, None)
    rescored(records)
    with records.database.reading() as connection:
        run = connection.execute(select(_runs)).one()
    # As if each outcome had been judged as its neighbour was.
    _change(records, update(_runs).values(first_seq=run.first_seq - 1, last_seq=run.last_seq - 1, offsets=None))
    with pytest.raises(RecordTampered):
        rescored(records, 0.1)


def test_an_outcome_is_not_read_from_a_run_of_others(records: Store) -> None:
    one, other = make_outcomes(records, None, None)
    rescored(records)
    _change(records, update(_runs).values(first_seq=_runs.c.first_seq + 1, last_seq=_runs.c.last_seq + 1))
    with records.database.reading() as connection:
        assert len(outcomes.versions(connection, SCOPE, one)) == 1
        with pytest.raises(RecordTampered):
            outcomes.versions(connection, SCOPE, other)


def _body(store: Store, leaf: int) -> bytes:
    table = tables.log_leaves
    with store.database.reading() as connection:
        return bytes(connection.execute(select(table.c.body).where(table.c.seq == leaf)).scalar_one())


def test_a_damaged_segment_is_refused_and_named(records: Store) -> None:
    (one,) = make_outcomes(records, None)
    rescored(records)
    with records.database.reading() as connection:
        address = connection.execute(select(tables.verdict_segments.c.address)).scalar_one()
    _change(records, update(tables.blobs).where(tables.blobs.c.address == address).values(content=b"damaged"))
    with records.database.reading() as connection, pytest.raises(StoreError):
        outcomes.versions(connection, SCOPE, one)
    assert {problem.code for problem in check_store(records).problems} == {"row", "blob"}
    _change(records, tables.blobs.delete().where(tables.blobs.c.address == address))
    with records.database.reading() as connection, pytest.raises(StoreError):
        outcomes.versions(connection, SCOPE, one)


def test_what_a_version_rests_on_is_compared_with_its_segment(records: Store) -> None:
    one, other = make_outcomes(records, None, None)
    rescored(records)
    with records.database.reading() as connection:
        (first, second) = outcomes.versions(connection, SCOPE, one)
        address = connection.execute(select(tables.verdict_segments.c.address)).scalar_one()
        blob = bytes(
            connection.execute(select(tables.blobs.c.content).where(tables.blobs.c.address == address)).scalar_one()
        )
    assert second.result is not None
    digests = (second.result.input_digest, second.result.output_digest)

    def require(basis: VersionBasis, name: str = one) -> None:
        records.recorder.write(lambda writing: basis.require_committed(writing, TENANT, name))

    require(VersionBasis(2, second.result.to_json(), digests))
    for wrong in (
        VersionBasis(2, first.result.to_json() if first.result else b""),
        VersionBasis(2, digests=(digests[1],)),
        VersionBasis(3),
    ):
        with pytest.raises(RecordTampered):
            require(wrong)
    with pytest.raises(RecordTampered):
        require(VersionBasis(2, second.result.to_json()), other)
    # A segment that a database writer replaced, with its address.
    contents = open_versions(blob).contents()
    contents[0] = msgspec.structs.replace(contents[0], verdict="partial")
    forged = in_database(pack([pack_version(content) for content in contents]).blob)
    _change(records, update(tables.verdict_segments).values(address=forged.address))
    _change(
        records,
        update(tables.blobs)
        .where(tables.blobs.c.address == address)
        .values(address=forged.address, content=forged.content, size=len(forged.content)),
    )
    with pytest.raises(RecordTampered):
        require(VersionBasis(2))
    assert {problem.code for problem in check_store(records).problems} == {"row"}


# Batches, whose first versions are in segments.


def make_batch(store: Store, *contracts: str | None) -> list[str]:
    """One outcome for each contract, recorded as a batch."""
    made = []
    for number, contract in enumerate(contracts):
        text = "the cat" if number % 2 else "the cat sat"
        new = outcome(store, work_output={"text": text, "n": number}, labels=Labels(contract, "agent"))
        result = msgspec.structs.replace(new.result, contract_id=contract or new.id)
        made.append(msgspec.structs.replace(new, result=result))
    return [one.outcome_id for one in store.recorder.write(RecordTogether(TENANT, tuple(made)))]


def test_a_batch_adds_one_entry_and_one_event(records: Store) -> None:
    make_batch(records, None)
    before = size_of(records)
    ids = make_batch(records, None, None, "shared", 'ünï "c"')
    assert size_of(records) - before == 1
    with records.database.reading() as connection:
        event = connection.execute(select(tables.events).order_by(tables.events.c.seq.desc()).limit(1)).one()
        found = [outcomes.full_record(connection, SCOPE, one, records.blobs) for one in ids]
    data = msgspec.json.decode(event.data)
    assert event.type == "outcomes.recorded"
    assert [(one["outcome_id"], one["version"], one["agent_id"]) for one in data["outcomes"]] == [
        (one, 1, "agent") for one in ids
    ]
    assert [one.work_output["n"] for one in found if one.work_output is not None] == [0, 1, 2, 3]
    assert [one.verification_result.success for one in found if one.verification_result] == [True, True, True, True]
    assert check_store(records).problems == []


def test_each_outcome_of_a_batch_is_proven_alone(records: Store) -> None:
    make_outcomes(records, "shared", "other")
    ids = make_batch(records, None, "shared", "shared", 'ünï "c"')
    rescored(records)
    make_outcomes(records, "shared")
    for one in ids:
        files = unpack(export(records, SCOPE, one))
        found = verify_bundle(pack_files(files))
        assert found.failed is None, found
        assert {"work/output.json", "verdicts/1.json", "verdicts/2.json", "versions.json"} <= files.keys()
        for version in (1, 2):
            made = receipt(records, SCOPE, one, version)
            assert isinstance(made, CaseReceipt)
            assert verify_receipt(made.to_json()).version == version


def test_every_forgery_of_a_batch_is_found(records: Store) -> None:
    make_outcomes(records, "shared")
    mine, other, alone = make_batch(records, "shared", "shared", None)
    make_outcomes(records, "shared")
    files, foreign = unpack(export(records, SCOPE, mine)), unpack(export(records, SCOPE, other))
    ((leaf, held),) = VersionsFile.from_json(files["versions.json"]).versions.items()
    entry = read_version(held.entry)
    entries = msgspec.json.decode(files["entries.json"])["entries"]
    of_contract = [
        place
        for place, one in enumerate(entries)
        if isinstance(read_entry(b64decode(one["body"])), EvidenceEntry | VerdictEntry)
    ]
    assert of_contract, "the entry before the batch, and those after it"

    def without(place: int) -> dict[str, bytes]:
        left = [
            LoggedEntry(one["index"], b64decode(one["body"]), [b64decode(hash_) for hash_ in one["proof"]])
            for number, one in enumerate(entries)
            if number != place
        ]
        return {"entries.json": Entries(left).to_json()}

    forged = {
        "other work": {"work/output.json": foreign["work/output.json"]},
        "another outcome's": {"versions.json": foreign["versions.json"]},
        "evidence elsewhere": {
            "versions.json": VersionsFile(
                {
                    leaf: msgspec.structs.replace(
                        held, entry=version_bytes(msgspec.structs.replace(entry, evidence_index=1))
                    )
                }
            ).to_json()
        },
        "another statement": {"statement.dsse.json": foreign["statement.dsse.json"]},
        **{f"without entry {place}": without(place) for place in of_contract},
    }
    assert failed_step(files) is None
    for name, parts in forged.items():
        assert failed_step({**files, **parts}) is not None, name
    assert verify_bundle(export(records, SCOPE, alone)).failed is None


def test_one_outcome_of_a_batch_is_erased_and_its_neighbours_stay(records: Store) -> None:
    make_outcomes(records, "shared")
    ids = make_batch(records, None, "shared", None)
    for gone in ids[:2]:
        assert set(erase(records, TENANT, gone, "asked to").parts) == {"input", "output", "metadata", "result"}
    for one in ids:
        found = verify_bundle(export(records, SCOPE, one))
        assert found.failed is None, found
    assert not any(name.startswith(("work/", "verdicts/")) for name in unpack(export(records, SCOPE, ids[0])))
    assert check_store(records).problems == []


@pytest.mark.parametrize(
    "change",
    [
        lambda: update(tables.outcomes).values(contract_id="another"),
        lambda: update(tables.outcomes).values(output_salt=b"s" * 16),
        lambda: update(tables.outcomes).values(input_address="0" * 64),
        lambda: update(tables.outcomes).values(score=0.125),
        lambda: tables.outcomes.delete().where(tables.outcomes.c.seq == 1),
    ],
)
def test_outcomes_of_a_batch_that_were_changed_are_named(records: Store, change: Callable[[], object]) -> None:
    make_batch(records, None, None)
    assert check_store(records).problems == []
    _change(records, change())
    assert check_store(records).problems != []


def test_an_outcome_does_not_point_to_a_segment_without_evidence(records: Store) -> None:
    make_batch(records, None)
    rescored(records)
    with records.database.reading() as connection:
        later = max(connection.execute(select(tables.verdict_segments.c.leaf)).scalars())
    _change(records, update(tables.outcomes).values(evidence_leaf=later))
    assert any(problem.where.startswith("outcomes") for problem in check_store(records).problems)
