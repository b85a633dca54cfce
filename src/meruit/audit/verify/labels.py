"""What people said of a case: its labels in the log, and what was said, as a bundle brings both."""

from collections.abc import Mapping

import msgspec

from meruit.audit.bundle import LABELS, Annotations, LabelProof, LabelsFile, short
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.commitment import matches, salt_of
from meruit.log.entries import Entry, LabelEntry, ReviewEntry, SegmentEntry
from meruit.review.label import label_content


class LabelHistory(msgspec.Struct, frozen=True):
    """What the log says of the labels of a case."""

    case: str
    """Its id, `#` and the repeat."""
    entries: Mapping[int, LabelEntry]
    """By their place in the log, those included that the same person replaced later."""


def label_history(entries: Mapping[int, Entry], case: str, segment: SegmentEntry, about: Annotations) -> LabelHistory:
    """The labels among the entries; raises BundleFlaw where one is missing, or is of another evaluation."""
    reviews: dict[str, int] = {}
    """How many labels each review has so far."""
    draws: dict[str, int] = {}
    versions: dict[tuple[str, str], int] = {}
    labels: dict[int, LabelEntry] = {}
    for index, entry in entries.items():
        match entry:
            case ReviewEntry():
                if (entry.tenant, entry.evaluation) != (segment.tenant, segment.evaluation) or entry.review in reviews:
                    raise _flaw(f"entry {index} is not a review of the case's evaluation, or is there twice")
                reviews[entry.review] = 0
            case LabelEntry():
                person = entry.review, entry.labeller
                versions[person] = versions.get(person, 0) + 1
                draw = draws.setdefault(entry.review, entry.draw)
                if entry.tenant != segment.tenant or entry.review not in reviews or entry.draw != draw:
                    raise _flaw(f"entry {index} is a label of another case, or of no review before it")
                if entry.version != versions[person]:
                    raise _flaw(
                        f"entry {index} is version {entry.version} of the label by {short(entry.labeller)}, "
                        f"not {versions[person]}: one is left out"
                    )
                reviews[entry.review] += 1
                labels[index] = entry
            case _:
                continue
    if not all(reviews.values()):
        raise _flaw("there is a review without a label of the case")
    if about.labels != len(labels):
        raise _flaw(f"the statement names {about.labels} labels; the bundle has {len(labels)}")
    return LabelHistory(case, labels)


def check_labels(file: LabelsFile | None, history: LabelHistory | None) -> list[str]:
    """What people said, a line for each label; raises BundleFlaw naming one that is not what was committed to."""
    known = {} if history is None else {str(index): entry for index, entry in history.entries.items()}
    proofs = {} if file is None else file.labels
    if proofs.keys() != known.keys() or (file is not None and not proofs):
        raise BundleFlaw(AuditStep.BLOBS, f"{LABELS} has other labels than the log")
    if history is None:
        return []
    latest = {(entry.review, entry.labeller): entry.version for entry in known.values()}
    lines = []
    for index, entry in known.items():
        proof = proofs[index]
        if not matches(entry.label, salt_of(proof.salt), label_content(history.case, proof.choice, proof.note)):
            raise BundleFlaw(
                AuditStep.BLOBS,
                f"the label by {short(entry.labeller)} in {short(entry.review)}, entry {index}, "
                "is not what was committed to",
            )
        lines.append(_describe(entry, proof, is_latest=latest[entry.review, entry.labeller] == entry.version))
    return lines


def _describe(entry: LabelEntry, proof: LabelProof, *, is_latest: bool) -> str:
    said = (
        f"{short(entry.labeller)} labelled the case {short(proof.choice)} at {short(entry.at)} in {short(entry.review)}"
    )
    if not is_latest:
        said += ", superseded later"
    return f"testimony: {said}; labels are what people said, not measurements"


def _flaw(what: str) -> BundleFlaw:
    return BundleFlaw(AuditStep.SEQUENCE, what)
