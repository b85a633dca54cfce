"""Read an outcome's entries: evidence, versions of the verdict, erasures; of its own, or in segments."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meruit.audit.bundle import (
    VERSIONS,
    Annotations,
    Bundle,
    CaseFile,
    LoggedEntry,
    short,
)
from meruit.audit.case import evidence_of_case, evidence_of_version, verdict_of_case, verdict_of_version
from meruit.audit.verify.contract_history import (
    check_later_window,
    check_window,
    entries_on_verdicts,
    read_contract_history,
)
from meruit.audit.verify.history import OutcomeHistory, sequence_flaw
from meruit.audit.verify.labels import label_history
from meruit.audit.verify.signatures import VerifiedSignatures
from meruit.audit.verify.usage import usage_history
from meruit.log.entries import (
    OUR_CONTRACT,
    ContractEntry,
    CriteriaEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    KeyEntry,
    LabelEntry,
    ReviewEntry,
    SegmentEntry,
    UsageEntry,
    VerdictEntry,
    VersionSegmentEntry,
    entry_bytes,
    read_entry,
)
from meruit.log.key_chain import KeyChain
from meruit.log.segment import (
    CaseEntry,
    VersionEntry,
    case_bytes,
    is_in_segment,
    read_case,
    read_version,
    root_of,
    version_bytes,
)
from meruit.model.decoding import convert_to


def read_outcome_history(bundle: Bundle, signed: VerifiedSignatures) -> OutcomeHistory:
    """Read the entries; raises BundleFlaw where one is missing or too many."""
    about = _annotations(signed)
    entries = _in_order(bundle.entries)
    chain = KeyChain(signed.key.name)
    for index, entry in entries.items():
        if isinstance(entry, KeyEntry) and (why := chain.admit(index, entry)):
            raise sequence_flaw(f"entry {index} does not admit a key: {why}")
    if not chain.is_in_force(signed.key.vkey):
        raise sequence_flaw("the log does not admit the key that signs the bundle")
    if bundle.case is not None:
        return _case_history(bundle, bundle.case, signed, about, entries)
    return _own_history(bundle, signed, about, entries)


def _own_history(
    bundle: Bundle, signed: VerifiedSignatures, about: Annotations, entries: Mapping[int, Entry]
) -> OutcomeHistory:
    """The history of an outcome that has entries of its own."""
    for index, entry in entries.items():
        if not isinstance(entry, KeyEntry | CriteriaEntry | UsageEntry | ContractEntry | VersionSegmentEntry):
            raise sequence_flaw(f"entry {index} is not about the outcome")
    of_contract = {index: entry for index, entry in entries.items() if isinstance(entry, ContractEntry)}
    in_segments = _read_versions(bundle, entries, about)
    evidence_index, evidence, later = _find_evidence(bundle.manifest.outcome, of_contract, in_segments, about)
    verdicts = _merge_verdicts(evidence, later, in_segments)
    versions = [entry.version for entry in verdicts.values()]
    if not versions or versions != [*range(1, len(versions) + 1)]:
        raise sequence_flaw(f"the versions of the verdict are {versions[:10]}, not 1 and on without a gap")
    if bundle.manifest.versions != versions or about.version != versions[-1]:
        raise sequence_flaw("the manifest or the statement names other versions than the log")
    _check_criteria(entries, verdicts, evidence_index)
    first, *_ = verdicts.values()
    if first.criteria_index >= signed.first.size:
        raise sequence_flaw("the first checkpoint was signed before the criteria were committed to")
    erasures = {index: entry for index, entry in later if isinstance(entry, ErasureEntry)}
    *_, (latest_index, latest) = verdicts.items()
    if erasures and latest_index > min(erasures):
        raise sequence_flaw(f"version {latest.version} of the verdict came after an erasure; nothing may follow one")
    erased = frozenset(part for entry in erasures.values() for part in entry.parts)
    deal = read_contract_history(of_contract, verdicts, usage_history(entries, evidence.tenant, about))
    if deal is not None and erasures and any(index > min(erasures) for index in entries_on_verdicts(of_contract)):
        raise sequence_flaw("a verdict was checked or paid after the evidence was erased")
    return OutcomeHistory(evidence=evidence, verdicts=(*verdicts.values(),), erased=erased, about=about, contract=deal)


_InSegments: TypeAlias = Mapping[int, tuple[VersionEntry, VersionSegmentEntry]]
"""Versions that segments hold, by the index of the segment."""


def _find_evidence(
    outcome: str, entries: Mapping[int, ContractEntry], in_segments: _InSegments, about: Annotations
) -> tuple[int, EvidenceEntry, Sequence[tuple[int, ContractEntry]]]:
    """The evidence and its index, and the outcome's entries after it; raises BundleFlaw."""
    own = {index: entry for index, entry in entries.items() if entry.outcome == outcome}
    brought = next((index for index, (version, _) in in_segments.items() if version.evidence_index is None), None)
    evidence: ContractEntry
    if brought is None:
        check_window(outcome, entries, about)
        (index, evidence), *later = own.items()
    else:
        index, later = brought, [*own.items()]
        evidence = evidence_of_version(*in_segments[index])
        check_later_window(index, evidence, entries, about)
    if not isinstance(evidence, EvidenceEntry) or any(isinstance(entry, EvidenceEntry) for _, entry in later):
        raise sequence_flaw("the outcome's own entries do not begin with its one evidence")
    return index, evidence, later


def _merge_verdicts(
    evidence: EvidenceEntry, later: Sequence[tuple[int, ContractEntry]], in_segments: _InSegments
) -> dict[int, VerdictEntry]:
    """All versions of the verdict, in the order of the log."""
    found = {index: entry for index, entry in later if isinstance(entry, VerdictEntry)}
    for index, (version, segment) in in_segments.items():
        if (segment.tenant, version.contract) != (evidence.tenant, evidence.contract):
            raise sequence_flaw(f"the segment at {index} is of another contract")
        found[index] = verdict_of_version(version, segment, index)
    return dict(sorted(found.items()))


def _read_versions(
    bundle: Bundle, entries: Mapping[int, Entry], about: Annotations
) -> dict[int, tuple[VersionEntry, VersionSegmentEntry]]:
    """The versions of the verdict that segments hold, by the index of the segment; raises BundleFlaw."""
    segments = {index: entry for index, entry in entries.items() if isinstance(entry, VersionSegmentEntry)}
    proofs = {} if bundle.versions is None else bundle.versions.versions
    if {str(index) for index in segments} != proofs.keys() or (bundle.versions is None) != (not segments):
        raise sequence_flaw(f"{VERSIONS} does not hold one version of each segment")
    if segments and OUR_CONTRACT.fullmatch(about.contract):
        raise sequence_flaw("a version of a contract's verdict has no entry of its own")
    found = {}
    for index, segment in segments.items():
        proof = proofs[str(index)]
        try:
            version = read_version(proof.entry)
            same = version_bytes(version) == proof.entry
        except (ValueError, RecursionError) as problem:
            raise sequence_flaw(f"the version in the segment at {index} cannot be read: {problem}") from None
        if not same:
            raise sequence_flaw(f"the version in the segment at {index} is not in the form that a segment has")
        if not is_in_segment(proof.entry, proof.place, segment.versions, proof.proof, root_of(segment.root)):
            raise sequence_flaw(f"the segment at {index} does not hold the version")
        if {version.outcome, about.outcome} != {bundle.manifest.outcome}:
            raise sequence_flaw(f"the segment at {index}, or the statement, is about another outcome")
        if segment.evidence != (version.evidence_index is None) or segment.evidence != (version.version == 1):
            raise sequence_flaw(f"the segment at {index} does not hold versions of this kind")
        found[index] = version, segment
    return found


def _case_history(
    bundle: Bundle, proof: CaseFile, signed: VerifiedSignatures, about: Annotations, entries: Mapping[int, Entry]
) -> OutcomeHistory:
    """The history of a case of an evaluation; raises BundleFlaw where its segment does not hold it."""
    outcome = bundle.manifest.outcome
    if bundle.versions is not None:
        raise sequence_flaw("a case of an evaluation has one version of its verdict")
    for place, entry in entries.items():
        if not isinstance(entry, KeyEntry | CriteriaEntry | SegmentEntry | ErasureEntry | ReviewEntry | LabelEntry):
            raise sequence_flaw(f"entry {place} is not about the case")
    segments = [(index, entry) for index, entry in entries.items() if isinstance(entry, SegmentEntry)]
    if len(segments) != 1:
        raise sequence_flaw(f"there are {len(segments)} segments; a case is in one")
    index, segment = segments[0]
    case = _read_case(proof)
    if not is_in_segment(proof.entry, proof.place, segment.cases, proof.proof, root_of(segment.root)):
        raise sequence_flaw("the segment does not hold the case")
    if {case.outcome, about.outcome, about.contract} != {outcome}:
        raise sequence_flaw(f"the bundle is about {short(outcome)}; its case or its statement is about another")
    if (bundle.manifest.versions, about.version, case.version) != ([1], 1, 1):
        raise sequence_flaw("a case of an evaluation has one version of its verdict")
    verdict = verdict_of_case(case, segment, index)
    _check_criteria(entries, {index: verdict}, index)
    if segment.criteria_index >= signed.first.size:
        raise sequence_flaw("the first checkpoint was signed before the criteria were committed to")
    erased = _erasures_of_case(entries, index, segment, about)
    return OutcomeHistory(
        evidence=evidence_of_case(case, segment),
        verdicts=(verdict,),
        erased=erased,
        about=about,
        labels=label_history(entries, f"{case.case}#{case.repeat}", segment, about),
    )


def _erasures_of_case(
    entries: Mapping[int, Entry], index: int, segment: SegmentEntry, about: Annotations
) -> frozenset[str]:
    """What was erased of a case, by entries that are numbered without a gap."""
    erasures = [(place, entry) for place, entry in entries.items() if isinstance(entry, ErasureEntry)]
    for number, (place, entry) in enumerate(erasures, 1):
        found = (entry.tenant, entry.outcome, entry.contract, entry.contract_seq)
        if found != (segment.tenant, about.outcome, about.outcome, number) or place < index:
            raise sequence_flaw(f"entry {place} is not the next erasure of this case")
    if about.contract_seq != len(erasures):
        raise sequence_flaw(f"the statement names {about.contract_seq} erasures; the bundle has {len(erasures)}")
    return frozenset(part for _, entry in erasures for part in entry.parts)


def _read_case(proof: CaseFile) -> CaseEntry:
    try:
        case = read_case(proof.entry)
        same = case_bytes(case) == proof.entry
    except (ValueError, RecursionError) as problem:
        raise sequence_flaw(f"the case cannot be read: {problem}") from None
    if not same:
        raise sequence_flaw("the case is not in the form that a segment has")
    return case


def _annotations(signed: VerifiedSignatures) -> Annotations:
    try:
        about = convert_to(signed.statement["subject"][0]["annotations"], Annotations)
    except (LookupError, TypeError, ValueError) as problem:
        raise sequence_flaw(f"the statement does not say what the bundle must hold: {problem}") from None
    sizes = about.first_log_size, about.log_size
    if sizes != (signed.first.size, signed.checkpoint.size):
        raise sequence_flaw(
            f"the statement is about checkpoints of {sizes[0]} and {sizes[1]} entries, not about these two"
        )
    return about


def _in_order(logged: Sequence[LoggedEntry]) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    before = -1
    for one in logged:
        if one.index <= before:
            raise sequence_flaw(f"entry {one.index} comes after entry {before}")
        before = one.index
        try:
            entries[one.index] = read_entry(one.body)
            same = entry_bytes(entries[one.index]) == one.body
        except (ValueError, RecursionError) as problem:
            raise sequence_flaw(f"entry {one.index} cannot be read: {problem}") from None
        if not same:
            raise sequence_flaw(f"entry {one.index} is not in the form that a log writes")
    return entries


def _check_criteria(entries: Mapping[int, Entry], verdicts: Mapping[int, VerdictEntry], evidence_index: int) -> None:
    """That each verdict rests on this evidence, and on criteria that were committed to before."""
    for index, verdict in verdicts.items():
        if verdict.evidence_index != evidence_index:
            raise sequence_flaw(f"version {verdict.version} was reached on other evidence")
        criteria = entries.get(verdict.criteria_index)
        if not isinstance(criteria, CriteriaEntry) or criteria.digest != verdict.criteria:
            raise sequence_flaw(f"version {verdict.version} names criteria that are not at {verdict.criteria_index}")
        if criteria.tenant != verdict.tenant:
            raise sequence_flaw(f"version {verdict.version} names the criteria of another tenant")
        # Later versions may judge by newer criteria, which then say so.
        if verdict.criteria_index > (evidence_index if verdict.version == 1 else index):
            raise sequence_flaw(f"the criteria of version {verdict.version} came after what is judged by them")
    known = {index for index, entry in entries.items() if isinstance(entry, CriteriaEntry)}
    if known != {verdict.criteria_index for verdict in verdicts.values()}:
        raise sequence_flaw("there are criteria by which nothing was judged")
