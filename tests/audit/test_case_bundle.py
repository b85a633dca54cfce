"""A case of an evaluation is proven alone, erased alone, and every forgery of its bundle is found."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.evaluations.conftest import CRITERIA, TENANT

from meruit.audit.bundle import CaseFile, CaseReceipt, pack_files, unpack
from meruit.audit.export import export, receipt
from meruit.audit.verify import outcome_history
from meruit.audit.verify.outcome import verify_bundle
from meruit.errors import AuditStep, BundleFlaw, NotFound
from meruit.evaluations.evaluation import Case
from meruit.evaluations.reader import CaseFilter, Evaluations, erase_case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.log.entries import SegmentEntry, read_entry
from meruit.log.merkle import is_included, leaf_hash
from meruit.log.note import VerifierKey, open_checkpoint
from meruit.log.segment import is_in_segment
from meruit.model.access import Scope
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

SCOPE = Scope(TENANT)


@pytest.fixture
def records(store_location: Location) -> Iterator[Store]:
    """An evaluation of five cases, one of them without an output."""
    opened = Store.open(store_location)
    evaluator = Evaluator(Registrar(VerificationEngine(), opened), TENANT)
    criteria = evaluator.compile(CRITERIA)
    cases = [
        Case(f"c{n}", {"reference": "yes"}, None if n == 4 else {"text": "yes" if n % 2 else "no"}) for n in range(5)
    ]
    run_cases(evaluator, evaluator.start("first", criteria), criteria, cases)
    yield opened
    opened.close()


def outcome_of(store: Store, case_id: str) -> str:
    reader = Evaluations(store, TENANT)
    (found,) = reader.cases(reader.find("first"), CaseFilter(case_ids=(case_id,)))
    return found.outcome_id


def failed_step(files: Mapping[str, bytes]) -> str | None:
    return verify_bundle(pack_files(files)).failed


@pytest.mark.parametrize("case_id", ["c0", "c1"])
def test_a_case_is_proven_by_its_bundle(records: Store, case_id: str) -> None:
    found = verify_bundle(export(records, SCOPE, outcome_of(records, case_id)))
    assert found.failed is None, found
    assert {str(one.step): str(one.state) for one in found.steps} == {
        **dict.fromkeys(("bundle", "signature", "inclusion", "consistency", "sequence", "blobs"), "ok"),
        **dict.fromkeys(("metrics", "judge", "statement"), "ok"),
        **dict.fromkeys(("witnesses", "governance", "settlement"), "skipped"),
    }


def test_a_case_without_an_output_is_proven_to_be_open(records: Store) -> None:
    files = unpack(export(records, SCOPE, outcome_of(records, "c4")))
    found = verify_bundle(pack_files(files))
    assert found.failed is None, found
    assert {str(one.step): str(one.state) for one in found.steps}["metrics"] == "skipped"


def test_a_bundle_holds_nothing_of_other_cases(records: Store) -> None:
    files = unpack(export(records, SCOPE, outcome_of(records, "c1")))
    everything = b"".join(files.values())
    for other in ("c0", "c2", "c3"):
        assert outcome_of(records, other).encode() not in everything


def test_every_forgery_is_found(records: Store) -> None:
    files = unpack(export(records, SCOPE, outcome_of(records, "c1")))
    other = unpack(export(records, SCOPE, outcome_of(records, "c3")))
    case = CaseFile.from_json(files["case.json"])
    forged = {
        "another output": {"work/output.json": b'{"text":"no"}'},
        "another result": {"verdicts/1.json": files["verdicts/1.json"].replace(b"pass", b"fail", 1)},
        "another case": {"case.json": other["case.json"]},
        "another place": {"case.json": msgspec.structs.replace(case, place=case.place + 1).to_json()},
        "another entry": {
            "case.json": msgspec.structs.replace(case, entry=case.entry.replace(b'"pass"', b'"fail"')).to_json()
        },
        "no entry": {"case.json": msgspec.structs.replace(case, entry=b"{}").to_json()},
        "no proof": {"case.json": msgspec.structs.replace(case, proof=[]).to_json()},
        "other salts": {"salts.json": other["salts.json"]},
        "other work": {name: other[name] for name in ("work/input.json", "work/output.json", "work/metadata.json")},
        "another statement": {"statement.dsse.json": other["statement.dsse.json"]},
    }
    assert failed_step(files) is None
    for name, changed in forged.items():
        if any(files[file] != content for file, content in changed.items()):
            assert failed_step({**files, **changed}) is not None, name


def test_a_case_without_its_proof_is_no_bundle(records: Store) -> None:
    files = unpack(export(records, SCOPE, outcome_of(records, "c1")))
    without = {name: content for name, content in files.items() if name != "case.json"}
    assert failed_step(without) is not None


def test_one_case_is_erased_and_its_neighbours_stay(records: Store) -> None:
    gone, stays = outcome_of(records, "c1"), outcome_of(records, "c3")
    before = unpack(export(records, SCOPE, gone))
    assert erase_case(records, TENANT, gone, "asked to").parts == ("input", "output", "metadata", "result")
    assert erase_case(records, TENANT, gone, "asked again").parts == ()
    erased = export(records, SCOPE, gone)
    found = verify_bundle(erased)
    assert found.failed is None, found
    assert not any(name.startswith(("work/", "verdicts/")) for name in unpack(erased))
    assert verify_bundle(export(records, SCOPE, stays)).failed is None
    # What was taken out before still fits the log, but not a bundle that tells of the erasure.
    assert failed_step({**unpack(erased), "work/output.json": before["work/output.json"]}) is not None
    reader = Evaluations(records, TENANT)
    detail = next(reader.details(reader.find("first"), CaseFilter(case_ids=("c1",))))
    assert (detail.output, detail.result) == (None, None)
    # The numbers stay: they say nothing of the work.
    assert reader.summary(reader.find("first")).overall.cases == 5


def test_neighbours_may_be_erased_at_once(records: Store) -> None:
    for case_id in ("c0", "c1", "c2"):
        erase_case(records, TENANT, outcome_of(records, case_id), "asked to")
    for case_id in ("c0", "c1", "c2", "c3"):
        assert verify_bundle(export(records, SCOPE, outcome_of(records, case_id))).failed is None


def test_a_receipt_leads_from_the_case_to_a_signed_checkpoint(records: Store) -> None:
    found = receipt(records, SCOPE, outcome_of(records, "c3"))
    assert isinstance(found, CaseReceipt)
    signed = open_checkpoint(found.checkpoint, VerifierKey.parse(found.vkey))
    assert is_included(leaf_hash(found.entry), found.index, signed.size, found.proof, signed.root)
    segment = read_entry(found.entry)
    assert isinstance(segment, SegmentEntry)
    case = found.case
    assert is_in_segment(case.entry, case.place, segment.cases, case.proof, bytes.fromhex(segment.root))
    with pytest.raises(NotFound):
        receipt(records, SCOPE, outcome_of(records, "c3"), 2)


def test_another_tenant_and_an_agent_find_nothing(records: Store) -> None:
    outcome_id = outcome_of(records, "c1")
    for scope in (Scope("other"), Scope(TENANT, agent_id="a", only_own=True)):
        with pytest.raises(NotFound):
            export(records, scope, outcome_id)
        with pytest.raises(NotFound):
            receipt(records, scope, outcome_id)
    with pytest.raises(NotFound):
        erase_case(records, "other", outcome_id, "no")


def test_a_case_with_another_history_is_refused(records: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any: the pieces of a bundle as the verifier has read them.
    seen: list[tuple[Any, ...]] = []
    whole = outcome_history._case_history

    def noticed(*given: Any) -> Any:
        seen.append(given)
        return whole(*given)

    monkeypatch.setattr(outcome_history, "_case_history", noticed)
    erase_case(records, TENANT, outcome_of(records, "c1"), "asked to")
    for case_id in ("c3", "c1"):
        assert verify_bundle(export(records, SCOPE, outcome_of(records, case_id))).failed is None
    bundle, proof, signed, about, entries = seen[0]
    without = {place: one for place, one in entries.items() if not isinstance(one, SegmentEntry)}
    early = SimpleNamespace(first=SimpleNamespace(size=0))
    written = msgspec.structs.replace(proof, entry=proof.entry + b" ")
    of_erased = seen[1]
    last = max(of_erased[4])
    skipped = {**of_erased[4], last: msgspec.structs.replace(of_erased[4][last], contract_seq=7)}
    for given in (
        (bundle, proof, signed, about, {**entries, 99: about}),
        (bundle, proof, signed, about, without),
        (bundle, proof, signed, changed(about, version=2), entries),
        (bundle, proof, early, about, entries),
        (bundle, written, signed, about, entries),
        (*of_erased[:4], skipped),
        (*of_erased[:3], changed(of_erased[3], contract_seq=7), of_erased[4]),
    ):
        with pytest.raises(BundleFlaw) as found:
            whole(*given)
        assert found.value.step is AuditStep.SEQUENCE


# Any: a tuple with names or a frozen class.
def changed(one: Any, **fields: Any) -> Any:
    return one._replace(**fields) if hasattr(one, "_replace") else msgspec.structs.replace(one, **fields)
