"""A bundle of a case brings what people said of it; a changed, added or hidden label is found and named."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from tests.evaluations.conftest import CRITERIA, TENANT

from meruit.audit.bundle import LABELS, Annotations, Bundle, LabelsFile, pack, pack_files, read, unpack
from meruit.audit.export import export
from meruit.audit.findings import Findings
from meruit.audit.verify.labels import LabelHistory, check_labels, label_history
from meruit.audit.verify.outcome import verify_bundle
from meruit.errors import AuditStep, BundleFlaw
from meruit.evaluations.evaluation import Case
from meruit.evaluations.reader import CaseFilter, Evaluations, erase_case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.log.entries import Entry, LabelEntry, ReviewEntry, SegmentEntry
from meruit.model.access import Scope
from meruit.outcomes.service import Registrar
from meruit.review.service import ReviewRequest, Reviews
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

SCOPE = Scope(TENANT)
NOTE = "the customer is called Zacharias"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Three cases; on c0 and c1 two people say something, one of them twice, and nobody labels c2."""
    with closing(Store.open(Location(tmp_path_factory.mktemp("labelled")))) as opened:
        evaluator = Evaluator(Registrar(VerificationEngine(), opened), TENANT)
        criteria = evaluator.compile(CRITERIA)
        cases = [Case(f"c{n}", {"reference": "yes"}, {"text": "yes"}) for n in range(3)]
        run_cases(evaluator, evaluator.start("first", criteria), criteria, cases)
        reviews = Reviews(opened, TENANT)
        review = reviews.create(ReviewRequest(name="right", evaluation="first", question="Right?", random=3), by="t")
        places = {draw.case_id: draw.number for draw in reviews.draws(review)}
        for case_id in ("c0", "c1"):
            for who, choice in (("ann", "no"), ("bob", "cannot_tell"), ("ann", "yes")):
                reviews.label(review, places[case_id], labeller=who, choice=choice, note=NOTE, by="cli")
        yield opened


def outcome_of(store: Store, case_id: str) -> str:
    reader = Evaluations(store, TENANT)
    (found,) = reader.cases(reader.find("first"), CaseFilter(case_ids=(case_id,)))
    return found.outcome_id


def files_of(store: Store, case_id: str) -> dict[str, bytes]:
    return unpack(export(store, SCOPE, outcome_of(store, case_id)))


def verify(files: dict[str, bytes], **changed: Any) -> Findings:
    """The bundle again, with changed parts."""
    bundle: Bundle = msgspec.structs.replace(read(files), **changed)
    return verify_bundle(pack(bundle))


def test_labels_are_proven_and_said_to_be_testimony(labelled: Store) -> None:
    found = verify_bundle(pack_files(files_of(labelled, "c1")))
    assert found.failed is None, found
    notes = [note for note in found.notes if note.startswith("testimony:")]
    assert [("'ann'" in note, "'bob'" in note) for note in notes] == [(True, False), (False, True), (True, False)]
    assert [("'no'" in note, "superseded" in note) for note in notes] == [(True, True), (False, False), (False, False)]


def test_a_case_that_nobody_labelled_has_a_bundle_as_before(labelled: Store) -> None:
    files = files_of(labelled, "c2")
    assert LABELS not in files
    found = verify_bundle(pack_files(files))
    assert found.failed is None
    assert not any(note.startswith("testimony:") for note in found.notes)


def test_notes_and_other_cases_stay_outside(labelled: Store) -> None:
    files = files_of(labelled, "c1")
    everything = b"".join(files.values())
    assert NOTE.encode() not in everything
    assert outcome_of(labelled, "c0").encode() not in everything
    assert len(LabelsFile.from_json(files[LABELS]).labels) == 3


def test_a_changed_label_is_named(labelled: Store) -> None:
    files = files_of(labelled, "c1")
    proofs = LabelsFile.from_json(files[LABELS]).labels
    index = max(proofs, key=int)
    for change in ({"choice": "no"}, {"note": "0" * 64}, {"salt": "00" * 16}, {"salt": "x"}):
        changed = {**proofs, index: msgspec.structs.replace(proofs[index], **change)}
        found = verify(files, labels=LabelsFile(changed))
        assert found.failed == AuditStep.BLOBS
        (told,) = (step.message for step in found.steps if step.step is AuditStep.BLOBS)
        assert "'ann'" in told
        assert index in told


def test_no_label_can_be_hidden_added_or_taken_from_another_case(labelled: Store) -> None:
    files, other = files_of(labelled, "c1"), files_of(labelled, "c0")
    proofs = LabelsFile.from_json(files[LABELS]).labels
    first = min(proofs, key=int)
    fewer = LabelsFile({index: proof for index, proof in proofs.items() if index != first})
    assert verify(files, labels=fewer).failed == AuditStep.BLOBS
    assert verify(files, labels=None).failed == AuditStep.BLOBS
    entries = [one for one in read(files).entries if one.index != int(first)]
    assert verify(files, labels=fewer, entries=entries).failed == AuditStep.SEQUENCE
    strange = {**proofs, "999": proofs[first]}
    assert verify(files, labels=LabelsFile(strange)).failed == AuditStep.BLOBS
    assert verify(files, labels=LabelsFile.from_json(other[LABELS])).failed == AuditStep.BLOBS
    none = files_of(labelled, "c2")
    assert verify(none, labels=LabelsFile(proofs)).failed == AuditStep.BLOBS


def test_labels_stay_provable_when_the_case_is_erased(labelled: Store) -> None:
    assert erase_case(labelled, TENANT, outcome_of(labelled, "c0"), "asked to").parts
    files = files_of(labelled, "c0")
    found = verify_bundle(pack_files(files))
    assert found.failed is None, found
    assert len([note for note in found.notes if note.startswith("testimony:")]) == 3


AT = "2026-01-01T00:00:00.000000Z"
SEGMENT = SegmentEntry(AT, TENANT, "ev_1", 1, "c" * 64, 1, 3, "r" * 64)
REVIEW = ReviewEntry(AT, TENANT, "rev_1", "ev_1", 3, "d" * 64, "t")
LABEL = LabelEntry(AT, TENANT, "rev_1", 1, 2, "ann", 1, "l" * 64, "cli")
change = msgspec.structs.replace


def history(*entries: Entry, labels: int = 1) -> LabelHistory:
    about = Annotations("out_1", 1, "out_1", 0, 9, 9, labels=labels)
    return label_history(dict(enumerate((SEGMENT, *entries))), "c1#0", SEGMENT, about)


def test_the_entries_of_labels_belong_together() -> None:
    second = change(LABEL, version=2, number=2)
    assert [*history(REVIEW, LABEL, second, labels=2).entries] == [2, 3]
    assert not history(labels=0).entries
    wrong: dict[str, list[Entry]] = {
        "no review": [LABEL],
        "review after the label": [LABEL, REVIEW],
        "review of another evaluation": [change(REVIEW, evaluation="ev_2"), LABEL],
        "review of another tenant": [change(REVIEW, tenant="other"), LABEL],
        "review twice": [REVIEW, REVIEW, LABEL],
        "review without a label": [REVIEW, change(REVIEW, review="rev_2"), LABEL],
        "label of another tenant": [REVIEW, change(LABEL, tenant="other")],
        "first version left out": [REVIEW, second],
    }
    for name, entries in wrong.items():
        with pytest.raises(BundleFlaw) as found:
            history(*entries)
        assert found.value.step is AuditStep.SEQUENCE, name
    with pytest.raises(BundleFlaw):
        history(REVIEW, LABEL, change(second, draw=3), labels=2)
    with pytest.raises(BundleFlaw):
        history(REVIEW, LABEL, labels=2)


def test_no_file_of_labels_without_labels() -> None:
    for history_of_case in (LabelHistory("c1#0", {}), None):
        assert check_labels(None, history_of_case) == []
        with pytest.raises(BundleFlaw):
            check_labels(LabelsFile({}), history_of_case)
