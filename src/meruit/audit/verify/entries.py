"""Every check of a bundle that needs nothing but the bundle: no metric, no judge, no store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

import msgspec

from meruit.audit.bundle import (
    CHECKPOINT,
    CONTRACT,
    FIRST_CHECKPOINT,
    KEY,
    STATEMENT,
    VERSIONS,
    Annotations,
    Bundle,
    CaseFile,
    ContractFile,
    LoggedEntry,
    read,
    short,
    unpack,
)
from meruit.audit.case import evidence_of_case, evidence_of_version, verdict_of_case, verdict_of_version
from meruit.audit.findings import AuditStepState, Findings, StepFinding
from meruit.audit.verify.labels import LabelHistory, check_labels, label_history
from meruit.audit.verify.usage import UsageHistory, check_usage, usage_history
from meruit.contracts.latency import ContractTimes
from meruit.errors import AuditStep, BundleFlaw, MeruitError
from meruit.log.commitment import matches, salt_of
from meruit.log.cosignature import WitnessKey, cosignatures
from meruit.log.entries import (
    GOVERNANCE,
    NO_CRITERIA,
    OUR_CONTRACT,
    RESULT,
    AwardEntry,
    ContractEntry,
    CriteriaEntry,
    DisputeEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    GovernanceEntry,
    InputReadEntry,
    KeyEntry,
    LabelEntry,
    MoneyEntry,
    ResolutionEntry,
    ReviewEntry,
    SegmentEntry,
    SettlementEntry,
    StartEntry,
    UsageEntry,
    VerdictEntry,
    VersionSegmentEntry,
    criteria_digest_of,
    entry_bytes,
    read_entry,
)
from meruit.log.key_chain import KeyChain
from meruit.log.merkle import is_consistent, is_included, leaf_hash
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint, split_note
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
from meruit.log.statement import open_envelope

ContractTransition: TypeAlias = MoneyEntry | DisputeEntry | ResolutionEntry
BeforeOutput: TypeAlias = InputReadEntry | StartEntry
"""What can happen between the award and the output."""


class VerifiedSignatures(msgspec.Struct, frozen=True):
    """What the key vouches for."""

    key: VerifierKey
    checkpoint: Checkpoint
    first: Checkpoint
    trusted: Checkpoint | None
    """The older checkpoint that the verifier kept."""
    statement: dict[str, Any]


class OutcomeHistory(msgspec.Struct, frozen=True):
    """What the log says of the outcome."""

    evidence: EvidenceEntry
    verdicts: tuple[VerdictEntry, ...]
    """Version 1 first."""
    erased: frozenset[str]
    about: Annotations
    contract: "ContractHistory | None" = None
    """None for work without a contract."""
    labels: LabelHistory | None = None
    """What people said; None for an outcome that is not a case of an evaluation."""


class ContractHistory(msgspec.Struct, frozen=True):
    """What the log says of the contract."""

    award: AwardEntry
    governance: tuple[GovernanceEntry, ...]
    times: ContractTimes
    """When it was awarded, its input first read, and its start reported."""
    transitions: tuple[tuple[int, ContractTransition], ...]
    """What moved money, and the disputes about it, by their place in the log, the award first."""
    usage: UsageHistory
    """What the log says of the runs whose tokens were paid."""

    @property
    def money(self) -> tuple[tuple[int, MoneyEntry], ...]:
        """Only what moved money."""
        return tuple((index, entry) for index, entry in self.transitions if isinstance(entry, MoneyEntry))

    @property
    def criteria(self) -> str:
        """The digest of the criteria that were agreed on."""
        return self.award.criteria or NO_CRITERIA


class BundleCheck(msgspec.Struct, frozen=True):
    """How far a bundle was verified."""

    passed: tuple[StepFinding, ...]
    flaw: BundleFlaw | None
    notes: tuple[str, ...]
    bundle: Bundle | None = None
    signed: VerifiedSignatures | None = None
    history: OutcomeHistory | None = None


class WitnessQuorum(msgspec.Struct, frozen=True):
    """Which witnesses a reader trusts, and how many of them must have cosigned."""

    keys: tuple[WitnessKey, ...] = ()
    required: int = 0


NO_WITNESSES = WitnessQuorum()


def check(
    data: bytes,
    pinned: VerifierKey | None = None,
    trusted: str | None = None,
    quorum: WitnessQuorum = NO_WITNESSES,
) -> BundleCheck:
    """Every step that needs no metric and no judge; never raises.

    `pinned` is the key that must have signed, `trusted` the note of an older checkpoint of the same log, `quorum` the
    witnesses that must have cosigned the checkpoint.
    """
    passed: list[StepFinding] = []
    notes: list[str] = []
    bundle = signed = None
    try:
        files = unpack(data)
        bundle = read(files)
        passed.append(step_ok(AuditStep.BUNDLE, f"{len(files)} files"))
        signed = _verify_signatures(bundle, pinned, trusted)
        passed.append(step_ok(AuditStep.SIGNATURE, f"by {signed.key.name}+{signed.key.key_id}"))
        notes.append(_about_key(pinned))
        passed.append(check_witnesses(bundle.checkpoint, quorum))
        _check_inclusion(bundle.entries, signed.checkpoint)
        passed.append(
            step_ok(AuditStep.INCLUSION, f"{len(bundle.entries)} entries in a log of {signed.checkpoint.size}")
        )
        notes += _check_consistency(bundle.consistency.proof, signed)
        passed.append(step_ok(AuditStep.CONSISTENCY, f"from {signed.first.size} entries to {signed.checkpoint.size}"))
        story = _outcome_history(bundle, signed)
        count = len(story.verdicts)
        passed.append(
            step_ok(AuditStep.SEQUENCE, f"{count} version{'s' * (count > 1)} of the verdict, nothing left out")
        )
        blobs = _check_blobs(bundle, story)
        notes += check_labels(bundle.labels, story.labels)
        passed.append(step_ok(AuditStep.BLOBS, blobs))
    except BundleFlaw as flaw:
        return BundleCheck(passed=(*passed,), flaw=flaw, notes=(*notes,), bundle=bundle, signed=signed)
    return BundleCheck(passed=(*passed,), flaw=None, notes=(*notes,), bundle=bundle, signed=signed, history=story)


def step_ok(step: AuditStep, message: str) -> StepFinding:
    """A step that holds."""
    return StepFinding(step, AuditStepState.OK, message)


def findings(
    outcome: str | None, passed: Sequence[StepFinding], flaw: BundleFlaw | None, notes: Iterable[str]
) -> Findings:
    """All steps: those that were passed, the one that failed, and those that were not reached."""
    steps = [*passed]
    if flaw is not None:
        steps.append(StepFinding(flaw.step, AuditStepState.FAILED, str(flaw)))
    reached = {found.step for found in steps}
    steps += [StepFinding(step, AuditStepState.NOT_REACHED, "") for step in AuditStep if step not in reached]
    return Findings(outcome, None if flaw is None else flaw.step, steps, [*notes])


def check_witnesses(note: str, quorum: WitnessQuorum) -> StepFinding:
    """Whether enough of the witnesses cosigned the checkpoint; raises BundleFlaw."""
    others = len(split_note(note)[1]) - 1
    if not quorum.keys and not quorum.required:
        counted = (
            f"{others} cosignature{'s' * (others != 1)}, not checked: give --witness" if others else "none asked for"
        )
        return StepFinding(AuditStep.WITNESSES, AuditStepState.SKIPPED, counted)
    found = cosignatures(note, quorum.keys)
    if len(found) < quorum.required:
        raise BundleFlaw(
            AuditStep.WITNESSES,
            f"{len(found)} of your {len(quorum.keys)} witnesses cosigned the checkpoint, and {quorum.required} must: "
            "ask the operator for a newer export; if they never sign, the log was rolled back or forked",
        )
    names = ", ".join(f"{one.witness.name} at {_date(one.time_s)}" for one in found)
    return step_ok(AuditStep.WITNESSES, f"{len(found)} of {len(quorum.keys)}{': ' if names else ''}{names}")


def _date(time_s: int) -> str:
    """A time that a witness signed, for a message; it may be any number."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_s} s after 1970"


def _about_key(pinned: VerifierKey | None) -> str:
    if pinned is None:
        return "the key is the bundle's own: compare key.txt with what the operator publishes, or give --key"
    return "the key is the one that you gave"


def _verify_signatures(bundle: Bundle, pinned: VerifierKey | None, trusted: str | None) -> VerifiedSignatures:
    key = _open(KEY, lambda: VerifierKey.parse(bundle.key.removesuffix("\n")))
    if bundle.key != f"{key.vkey}\n":
        raise BundleFlaw(AuditStep.SIGNATURE, "key.txt holds more than a key")
    if pinned is not None and key != pinned:
        raise BundleFlaw(AuditStep.SIGNATURE, f"the bundle's key is {key.vkey}, not the one that you gave")
    signed = VerifiedSignatures(
        key=key,
        checkpoint=_open(CHECKPOINT, lambda: open_checkpoint(bundle.checkpoint, key)),
        first=_open(FIRST_CHECKPOINT, lambda: open_checkpoint(bundle.first_checkpoint, key)),
        trusted=None
        if trusted is None
        else _open("the checkpoint that you kept", lambda: open_checkpoint(trusted, key)),
        statement=_open(STATEMENT, lambda: open_envelope(bundle.statement, key)),
    )
    for one in (signed.checkpoint, signed.first, signed.trusted):
        if one is not None and one.origin != key.name:
            raise BundleFlaw(
                AuditStep.SIGNATURE, f"a checkpoint is of the log {short(one.origin)}, the key is of {key.name}"
            )
    return signed


_T = TypeVar("_T")


def _open(name: str, opening: Callable[[], _T]) -> _T:
    try:
        return opening()
    except MeruitError as problem:
        raise BundleFlaw(AuditStep.SIGNATURE, f"{name}: {problem}") from None


def _check_inclusion(entries: Sequence[LoggedEntry], checkpoint: Checkpoint) -> None:
    for entry in entries:
        if not is_included(leaf_hash(entry.body), entry.index, checkpoint.size, entry.proof, checkpoint.root):
            raise BundleFlaw(AuditStep.INCLUSION, f"entry {entry.index} is not in the log that checkpoint.txt signs")


def _check_consistency(proof: Sequence[bytes], signed: VerifiedSignatures) -> list[str]:
    """What could not be compared, as notes."""
    first, last, trusted = signed.first, signed.checkpoint, signed.trusted
    if not is_consistent(first.size, last.size, proof, first.root, last.root):
        raise BundleFlaw(
            AuditStep.CONSISTENCY,
            f"the log of {last.size} entries does not continue the one of {first.size}: it was rewritten",
        )
    if trusted is None:
        return []
    for one in (first, last):
        if one.size == trusted.size:
            if one.root != trusted.root:
                raise BundleFlaw(
                    AuditStep.CONSISTENCY,
                    f"the checkpoint that you kept has another root at {trusted.size} entries: two histories",
                )
            return [f"the checkpoint that you kept is the bundle's at {trusted.size} entries"]
    sizes = f"{first.size} and {last.size}"
    return [f"the checkpoint that you kept, of {trusted.size} entries, cannot be compared: the bundle's have {sizes}"]


def _sequence_flaw(what: str) -> BundleFlaw:
    return BundleFlaw(AuditStep.SEQUENCE, what)


def _outcome_history(bundle: Bundle, signed: VerifiedSignatures) -> OutcomeHistory:
    """Read the entries; raises BundleFlaw where one is missing or too many."""
    about = _annotations(signed)
    entries = _in_order(bundle.entries)
    chain = KeyChain(signed.key.name)
    for index, entry in entries.items():
        if isinstance(entry, KeyEntry) and (why := chain.admit(index, entry)):
            raise _sequence_flaw(f"entry {index} does not admit a key: {why}")
    if not chain.is_in_force(signed.key.vkey):
        raise _sequence_flaw("the log does not admit the key that signs the bundle")
    if bundle.case is not None:
        return _case_history(bundle, bundle.case, signed, about, entries)
    return _own_history(bundle, signed, about, entries)


def _own_history(
    bundle: Bundle, signed: VerifiedSignatures, about: Annotations, entries: Mapping[int, Entry]
) -> OutcomeHistory:
    """The history of an outcome that has entries of its own."""
    for index, entry in entries.items():
        if not isinstance(entry, KeyEntry | CriteriaEntry | UsageEntry | ContractEntry | VersionSegmentEntry):
            raise _sequence_flaw(f"entry {index} is not about the outcome")
    of_contract = {index: entry for index, entry in entries.items() if isinstance(entry, ContractEntry)}
    in_segments = _read_versions(bundle, entries, about)
    evidence_index, evidence, later = _find_evidence(bundle.manifest.outcome, of_contract, in_segments, about)
    verdicts = _merge_verdicts(evidence, later, in_segments)
    versions = [entry.version for entry in verdicts.values()]
    if not versions or versions != [*range(1, len(versions) + 1)]:
        raise _sequence_flaw(f"the versions of the verdict are {versions[:10]}, not 1 and on without a gap")
    if bundle.manifest.versions != versions or about.version != versions[-1]:
        raise _sequence_flaw("the manifest or the statement names other versions than the log")
    _check_criteria(entries, verdicts, evidence_index)
    first, *_ = verdicts.values()
    if first.criteria_index >= signed.first.size:
        raise _sequence_flaw("the first checkpoint was signed before the criteria were committed to")
    erasures = {index: entry for index, entry in later if isinstance(entry, ErasureEntry)}
    *_, (latest_index, latest) = verdicts.items()
    if erasures and latest_index > min(erasures):
        raise _sequence_flaw(f"version {latest.version} of the verdict came after an erasure; nothing may follow one")
    erased = frozenset(part for entry in erasures.values() for part in entry.parts)
    deal = _contract_history(of_contract, verdicts, usage_history(entries, evidence.tenant, about))
    if deal is not None and erasures and any(index > min(erasures) for index in _entries_on_verdicts(of_contract)):
        raise _sequence_flaw("a verdict was checked or paid after the evidence was erased")
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
        _check_window(outcome, entries, about)
        (index, evidence), *later = own.items()
    else:
        index, later = brought, [*own.items()]
        evidence = evidence_of_version(*in_segments[index])
        _check_later_window(index, evidence, entries, about)
    if not isinstance(evidence, EvidenceEntry) or any(isinstance(entry, EvidenceEntry) for _, entry in later):
        raise _sequence_flaw("the outcome's own entries do not begin with its one evidence")
    return index, evidence, later


def _merge_verdicts(
    evidence: EvidenceEntry, later: Sequence[tuple[int, ContractEntry]], in_segments: _InSegments
) -> dict[int, VerdictEntry]:
    """All versions of the verdict, in the order of the log."""
    found = {index: entry for index, entry in later if isinstance(entry, VerdictEntry)}
    for index, (version, segment) in in_segments.items():
        if (segment.tenant, version.contract) != (evidence.tenant, evidence.contract):
            raise _sequence_flaw(f"the segment at {index} is of another contract")
        found[index] = verdict_of_version(version, segment, index)
    return dict(sorted(found.items()))


def _read_versions(
    bundle: Bundle, entries: Mapping[int, Entry], about: Annotations
) -> dict[int, tuple[VersionEntry, VersionSegmentEntry]]:
    """The versions of the verdict that segments hold, by the index of the segment; raises BundleFlaw."""
    segments = {index: entry for index, entry in entries.items() if isinstance(entry, VersionSegmentEntry)}
    proofs = {} if bundle.versions is None else bundle.versions.versions
    if {str(index) for index in segments} != proofs.keys() or (bundle.versions is None) != (not segments):
        raise _sequence_flaw(f"{VERSIONS} does not hold one version of each segment")
    if segments and OUR_CONTRACT.fullmatch(about.contract):
        raise _sequence_flaw("a version of a contract's verdict has no entry of its own")
    found = {}
    for index, segment in segments.items():
        proof = proofs[str(index)]
        try:
            version = read_version(proof.entry)
            same = version_bytes(version) == proof.entry
        except (ValueError, RecursionError) as problem:
            raise _sequence_flaw(f"the version in the segment at {index} cannot be read: {problem}") from None
        if not same:
            raise _sequence_flaw(f"the version in the segment at {index} is not in the form that a segment has")
        if not is_in_segment(proof.entry, proof.place, segment.versions, proof.proof, root_of(segment.root)):
            raise _sequence_flaw(f"the segment at {index} does not hold the version")
        if {version.outcome, about.outcome} != {bundle.manifest.outcome}:
            raise _sequence_flaw(f"the segment at {index}, or the statement, is about another outcome")
        if segment.evidence != (version.evidence_index is None) or segment.evidence != (version.version == 1):
            raise _sequence_flaw(f"the segment at {index} does not hold versions of this kind")
        found[index] = version, segment
    return found


def _check_later_window(
    evidence_index: int, evidence: EvidenceEntry, entries: Mapping[int, ContractEntry], about: Annotations
) -> None:
    """That the contract's entries go without a gap from before the outcome's segment to the newest one."""
    if about.contract != evidence.contract:
        raise _sequence_flaw("the statement is about another contract")
    expected = next((entry.contract_seq for entry in entries.values()), 1)
    if entries and expected != 1 and min(entries) > evidence_index:
        raise _sequence_flaw(f"the contract's entries begin with number {expected}, after the outcome")
    for index, entry in entries.items():
        if (entry.tenant, entry.contract, entry.contract_seq) != (evidence.tenant, evidence.contract, expected):
            raise _sequence_flaw(f"entry {index} is not number {expected} of the contract")
        if not isinstance(entry, EvidenceEntry | VerdictEntry | ErasureEntry):
            raise _sequence_flaw("money moved, or governance or a dispute is recorded, without a contract")
        if entry.outcome == evidence.outcome and index < evidence_index:
            raise _sequence_flaw(f"entry {index} is about the outcome, and was there before it")
        expected += 1
    if about.contract_seq != expected - 1:
        raise _sequence_flaw(
            f"the contract's newest entry is number {about.contract_seq}; the bundle ends with {expected - 1}"
        )


def _case_history(
    bundle: Bundle, proof: CaseFile, signed: VerifiedSignatures, about: Annotations, entries: Mapping[int, Entry]
) -> OutcomeHistory:
    """The history of a case of an evaluation; raises BundleFlaw where its segment does not hold it."""
    outcome = bundle.manifest.outcome
    if bundle.versions is not None:
        raise _sequence_flaw("a case of an evaluation has one version of its verdict")
    for place, entry in entries.items():
        if not isinstance(entry, KeyEntry | CriteriaEntry | SegmentEntry | ErasureEntry | ReviewEntry | LabelEntry):
            raise _sequence_flaw(f"entry {place} is not about the case")
    segments = [(index, entry) for index, entry in entries.items() if isinstance(entry, SegmentEntry)]
    if len(segments) != 1:
        raise _sequence_flaw(f"there are {len(segments)} segments; a case is in one")
    index, segment = segments[0]
    case = _read_case(proof)
    if not is_in_segment(proof.entry, proof.place, segment.cases, proof.proof, root_of(segment.root)):
        raise _sequence_flaw("the segment does not hold the case")
    if {case.outcome, about.outcome, about.contract} != {outcome}:
        raise _sequence_flaw(f"the bundle is about {short(outcome)}; its case or its statement is about another")
    if (bundle.manifest.versions, about.version, case.version) != ([1], 1, 1):
        raise _sequence_flaw("a case of an evaluation has one version of its verdict")
    verdict = verdict_of_case(case, segment, index)
    _check_criteria(entries, {index: verdict}, index)
    if segment.criteria_index >= signed.first.size:
        raise _sequence_flaw("the first checkpoint was signed before the criteria were committed to")
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
            raise _sequence_flaw(f"entry {place} is not the next erasure of this case")
    if about.contract_seq != len(erasures):
        raise _sequence_flaw(f"the statement names {about.contract_seq} erasures; the bundle has {len(erasures)}")
    return frozenset(part for _, entry in erasures for part in entry.parts)


def _read_case(proof: CaseFile) -> CaseEntry:
    try:
        case = read_case(proof.entry)
        same = case_bytes(case) == proof.entry
    except (ValueError, RecursionError) as problem:
        raise _sequence_flaw(f"the case cannot be read: {problem}") from None
    if not same:
        raise _sequence_flaw("the case is not in the form that a segment has")
    return case


def _annotations(signed: VerifiedSignatures) -> Annotations:
    try:
        about = msgspec.convert(signed.statement["subject"][0]["annotations"], Annotations)
    except (LookupError, TypeError, ValueError) as problem:
        raise _sequence_flaw(f"the statement does not say what the bundle must hold: {problem}") from None
    sizes = about.first_log_size, about.log_size
    if sizes != (signed.first.size, signed.checkpoint.size):
        raise _sequence_flaw(
            f"the statement is about checkpoints of {sizes[0]} and {sizes[1]} entries, not about these two"
        )
    return about


def _in_order(logged: Sequence[LoggedEntry]) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    before = -1
    for one in logged:
        if one.index <= before:
            raise _sequence_flaw(f"entry {one.index} comes after entry {before}")
        before = one.index
        try:
            entries[one.index] = read_entry(one.body)
            same = entry_bytes(entries[one.index]) == one.body
        except (ValueError, RecursionError) as problem:
            raise _sequence_flaw(f"entry {one.index} cannot be read: {problem}") from None
        if not same:
            raise _sequence_flaw(f"entry {one.index} is not in the form that a log writes")
    return entries


def _check_window(outcome: str, entries: Mapping[int, ContractEntry], about: Annotations) -> None:
    """That the contract's entries go without a gap from the outcome's first to the newest that the statement names."""
    if not entries:
        raise _sequence_flaw("no entry is of the contract")
    first, *later = entries.values()
    awarded = isinstance(first, AwardEntry)
    begins = next((one.outcome for one in later if not isinstance(one, BeforeOutput)), "") if awarded else first.outcome
    if begins != outcome or about.outcome != outcome or about.contract != first.contract:
        raise _sequence_flaw(
            f"the bundle is about {short(outcome)}; its entries or its statement are about another outcome"
        )
    _check_award(outcome, first, later)
    expected = first.contract_seq
    for index, entry in entries.items():
        if (entry.tenant, entry.contract) != (first.tenant, first.contract):
            raise _sequence_flaw(f"entry {index} is of another contract")
        if entry.contract_seq != expected:
            raise _sequence_flaw(
                f"entry {index} is number {entry.contract_seq} of its contract, after number {expected - 1}"
            )
        expected += 1
    if about.contract_seq != expected - 1:
        raise _sequence_flaw(
            f"the contract's newest entry is number {about.contract_seq}; the bundle ends with {expected - 1}"
        )


def _check_award(outcome: str, first: ContractEntry, later: Sequence[ContractEntry]) -> None:
    """That a contract's story begins with its award and is about one outcome; nothing else moves money."""
    if isinstance(first, AwardEntry):
        if first.contract_seq != 1 or first.outcome:
            raise _sequence_flaw("the award is not the first entry of its contract")
        before = [entry for entry in later if isinstance(entry, BeforeOutput)]
        if before != [*later[: len(before)]] or any(entry.outcome for entry in before):
            raise _sequence_flaw("the contract was started, or its input read, after there was an output")
        if len({type(entry) for entry in before}) < len(before):
            raise _sequence_flaw("the contract was started twice, or its input read twice for the first time")
        if any(isinstance(entry, AwardEntry) or entry.outcome != outcome for entry in later[len(before) :]):
            raise _sequence_flaw("the contract was awarded twice, or has another outcome")
        return
    if OUR_CONTRACT.fullmatch(first.contract):
        raise _sequence_flaw("the award of the contract is left out")
    if not all(isinstance(entry, EvidenceEntry | VerdictEntry | ErasureEntry) for entry in later):
        raise _sequence_flaw("money moved, or governance or a dispute is recorded, without a contract")


def _contract_history(
    entries: Mapping[int, ContractEntry], verdicts: Mapping[int, VerdictEntry], usage: UsageHistory
) -> ContractHistory | None:
    """What the entries say about the contract, each based on entries before it."""
    award = next(iter(entries.values()), None)
    if not isinstance(award, AwardEntry):
        if usage:
            raise _sequence_flaw("tokens were paid without a contract")
        return None
    known = {entry.version: index for index, entry in verdicts.items()}
    for index, entry in _entries_on_verdicts(entries).items():
        if known.get(entry.version, index) >= index:
            raise _sequence_flaw(
                f"entry {index} rests on version {entry.version} of the verdict, which was not there yet"
            )
    governance = tuple(entry for entry in entries.values() if isinstance(entry, GovernanceEntry))
    if [entry.version for entry in governance] not in ([], [1]):
        raise _sequence_flaw("governance was asked twice, or about another version than the first")
    moves = tuple((index, entry) for index, entry in entries.items() if isinstance(entry, ContractTransition))
    deal = ContractHistory(
        award=award,
        governance=governance,
        times=_contract_times(award, entries.values()),
        transitions=moves,
        usage=usage,
    )
    if next(iter(verdicts.values())).criteria != deal.criteria:
        raise _sequence_flaw("the first verdict was reached by other criteria than the contract's")
    return deal


def _contract_times(award: AwardEntry, entries: Iterable[ContractEntry]) -> ContractTimes:
    found = {type(entry): _moment(entry) for entry in entries if isinstance(entry, BeforeOutput)}
    return ContractTimes(
        awarded_at=_moment(award), input_read_at=found.get(InputReadEntry), started_at=found.get(StartEntry)
    )


def _moment(entry: ContractEntry) -> datetime:
    try:
        moment = datetime.fromisoformat(entry.at)
    except ValueError:
        raise _sequence_flaw(f"an entry of the contract has the time {short(entry.at)}, which cannot be read") from None
    if moment.tzinfo is None:
        raise _sequence_flaw(f"an entry of the contract has the time {short(entry.at)}, which has no zone")
    return moment


def _entries_on_verdicts(entries: Mapping[int, ContractEntry]) -> dict[int, SettlementEntry | GovernanceEntry]:
    """The entries that rest on a version of the verdict."""
    return {index: entry for index, entry in entries.items() if isinstance(entry, SettlementEntry | GovernanceEntry)}


def _check_criteria(entries: Mapping[int, Entry], verdicts: Mapping[int, VerdictEntry], evidence_index: int) -> None:
    """That each verdict rests on this evidence, and on criteria that were committed to before."""
    for index, verdict in verdicts.items():
        if verdict.evidence_index != evidence_index:
            raise _sequence_flaw(f"version {verdict.version} was reached on other evidence")
        criteria = entries.get(verdict.criteria_index)
        if not isinstance(criteria, CriteriaEntry) or criteria.digest != verdict.criteria:
            raise _sequence_flaw(f"version {verdict.version} names criteria that are not at {verdict.criteria_index}")
        if criteria.tenant != verdict.tenant:
            raise _sequence_flaw(f"version {verdict.version} names the criteria of another tenant")
        # Later versions may judge by newer criteria, which then say so.
        if verdict.criteria_index > (evidence_index if verdict.version == 1 else index):
            raise _sequence_flaw(f"the criteria of version {verdict.version} came after what is judged by them")
    known = {index for index, entry in entries.items() if isinstance(entry, CriteriaEntry)}
    if known != {verdict.criteria_index for verdict in verdicts.values()}:
        raise _sequence_flaw("there are criteria by which nothing was judged")


def _check_blobs(bundle: Bundle, story: OutcomeHistory) -> str:
    """What holds, as a sentence."""
    wanted = {verdict.criteria for verdict in story.verdicts}
    if bundle.criteria.keys() != wanted:
        raise BundleFlaw(AuditStep.BLOBS, "criteria are missing, or there are some by which nothing was judged")
    for digest, body in bundle.criteria.items():
        if criteria_digest_of(body) != digest:
            raise BundleFlaw(AuditStep.BLOBS, f"criteria/{digest}.json is not what was committed to")
    evidence = story.evidence
    work = {"input": evidence.input, "output": evidence.output, "metadata": evidence.metadata}
    gone = _check_pieces("work", work, bundle.work, bundle.salts.of_work(), story.erased)
    results = {str(verdict.version): verdict.result for verdict in story.verdicts}
    stored = {str(version): content for version, content in bundle.results.items()}
    erased = frozenset(results) if RESULT in story.erased else frozenset()
    gone += _check_pieces("verdicts", results, stored, bundle.salts.results, erased)
    gone += _check_contract(bundle.contract, story)
    check_usage(bundle.usage, {} if story.contract is None else story.contract.usage)
    return "all are what was committed to" if not gone else f"erased, as the log says: {', '.join(gone)}"


def _check_contract(contract: ContractFile | None, story: OutcomeHistory) -> list[str]:
    """What of the contract is gone; the rest is what was committed to."""
    if (contract is None) != (story.contract is None):
        raise BundleFlaw(AuditStep.BLOBS, f"{CONTRACT} is missing, or there was no contract")
    if contract is None or story.contract is None:
        return []
    if sha256(contract.terms).hexdigest() != story.contract.award.terms:
        raise BundleFlaw(AuditStep.BLOBS, "the terms are not those that were committed to")
    if sha256(contract.work).hexdigest() != story.contract.award.work_digest:
        raise BundleFlaw(AuditStep.BLOBS, "the work is not the one that was committed to, or another was planted in it")
    bills = {str(entry.number): entry.bill for _, entry in story.contract.money if isinstance(entry, SettlementEntry)}
    if {number: sha256(bill).hexdigest() for number, bill in contract.bills.items()} != bills:
        raise BundleFlaw(AuditStep.BLOBS, "the bills are not those that were committed to")
    known = {str(entry.version): entry.dossier for entry in story.contract.governance}
    erased = frozenset(known) if GOVERNANCE in story.erased else frozenset()
    bodies = {version: record.body for version, record in contract.governance.items()}
    salts = {version: record.salt for version, record in contract.governance.items()}
    return _check_pieces(GOVERNANCE, known, bodies, salts, erased)


def _check_pieces(
    folder: str,
    commitments: Mapping[str, str],
    contents: Mapping[str, bytes],
    salts: Mapping[str, str],
    erased: frozenset[str],
) -> list[str]:
    """The names of those that are gone, by right and for good; each of the others must match its commitment."""
    if strange := sorted((contents.keys() | salts.keys()) - commitments.keys()):
        raise BundleFlaw(AuditStep.BLOBS, f"the log has no {folder}/{short(strange[0])}")
    for name in contents.keys() | salts.keys():
        if name in erased:
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json is there, though the log says that it was erased")
        if name not in contents or name not in salts:
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json and its salt are not both there")
        if not matches(commitments[name], salt_of(salts[name]), contents[name]):
            raise BundleFlaw(AuditStep.BLOBS, f"{folder}/{name}.json is not what was committed to")
    gone = [name for name in commitments if name not in contents]
    for name in gone:
        if name not in erased:
            raise BundleFlaw(
                AuditStep.BLOBS, f"{folder}/{name}.json is missing, and the log does not say that it was erased"
            )
    return [f"{folder}/{name}.json" for name in gone]
