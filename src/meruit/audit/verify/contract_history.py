"""Read a contract's entries: from its award to the newest, without a gap, each based on entries before it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from meruit.audit.bundle import (
    Annotations,
    short,
)
from meruit.audit.verify.history import BeforeOutput, ContractHistory, ContractTransition, sequence_flaw
from meruit.audit.verify.usage import UsageHistory
from meruit.contracts.latency import ContractTimes
from meruit.log.entries import (
    OUR_CONTRACT,
    AwardEntry,
    ContractEntry,
    ErasureEntry,
    EvidenceEntry,
    GovernanceEntry,
    InputReadEntry,
    SettlementEntry,
    StartEntry,
    VerdictEntry,
)


def check_window(outcome: str, entries: Mapping[int, ContractEntry], about: Annotations) -> None:
    """That the contract's entries go without a gap from the outcome's first to the newest that the statement names."""
    if not entries:
        raise sequence_flaw("no entry is of the contract")
    first, *later = entries.values()
    awarded = isinstance(first, AwardEntry)
    begins = next((one.outcome for one in later if not isinstance(one, BeforeOutput)), "") if awarded else first.outcome
    if begins != outcome or about.outcome != outcome or about.contract != first.contract:
        raise sequence_flaw(
            f"the bundle is about {short(outcome)}; its entries or its statement are about another outcome"
        )
    _check_award(outcome, first, later)
    expected = first.contract_seq
    for index, entry in entries.items():
        if (entry.tenant, entry.contract) != (first.tenant, first.contract):
            raise sequence_flaw(f"entry {index} is of another contract")
        if entry.contract_seq != expected:
            raise sequence_flaw(
                f"entry {index} is number {entry.contract_seq} of its contract, after number {expected - 1}"
            )
        expected += 1
    if about.contract_seq != expected - 1:
        raise sequence_flaw(
            f"the contract's newest entry is number {about.contract_seq}; the bundle ends with {expected - 1}"
        )


def check_later_window(
    evidence_index: int, evidence: EvidenceEntry, entries: Mapping[int, ContractEntry], about: Annotations
) -> None:
    """That the contract's entries go without a gap from before the outcome's segment to the newest one."""
    if about.contract != evidence.contract:
        raise sequence_flaw("the statement is about another contract")
    expected = next((entry.contract_seq for entry in entries.values()), 1)
    if entries and expected != 1 and min(entries) > evidence_index:
        raise sequence_flaw(f"the contract's entries begin with number {expected}, after the outcome")
    for index, entry in entries.items():
        if (entry.tenant, entry.contract, entry.contract_seq) != (evidence.tenant, evidence.contract, expected):
            raise sequence_flaw(f"entry {index} is not number {expected} of the contract")
        if not isinstance(entry, EvidenceEntry | VerdictEntry | ErasureEntry):
            raise sequence_flaw("money moved, or governance or a dispute is recorded, without a contract")
        if entry.outcome == evidence.outcome and index < evidence_index:
            raise sequence_flaw(f"entry {index} is about the outcome, and was there before it")
        expected += 1
    if about.contract_seq != expected - 1:
        raise sequence_flaw(
            f"the contract's newest entry is number {about.contract_seq}; the bundle ends with {expected - 1}"
        )


def _check_award(outcome: str, first: ContractEntry, later: Sequence[ContractEntry]) -> None:
    """That a contract's story begins with its award and is about one outcome; nothing else moves money."""
    if isinstance(first, AwardEntry):
        if first.contract_seq != 1 or first.outcome:
            raise sequence_flaw("the award is not the first entry of its contract")
        before = [entry for entry in later if isinstance(entry, BeforeOutput)]
        if before != [*later[: len(before)]] or any(entry.outcome for entry in before):
            raise sequence_flaw("the contract was started, or its input read, after there was an output")
        if len({type(entry) for entry in before}) < len(before):
            raise sequence_flaw("the contract was started twice, or its input read twice for the first time")
        if any(isinstance(entry, AwardEntry) or entry.outcome != outcome for entry in later[len(before) :]):
            raise sequence_flaw("the contract was awarded twice, or has another outcome")
        return
    if OUR_CONTRACT.fullmatch(first.contract):
        raise sequence_flaw("the award of the contract is left out")
    if not all(isinstance(entry, EvidenceEntry | VerdictEntry | ErasureEntry) for entry in later):
        raise sequence_flaw("money moved, or governance or a dispute is recorded, without a contract")


def read_contract_history(
    entries: Mapping[int, ContractEntry], verdicts: Mapping[int, VerdictEntry], usage: UsageHistory
) -> ContractHistory | None:
    """What the entries say about the contract, each based on entries before it."""
    award = next(iter(entries.values()), None)
    if not isinstance(award, AwardEntry):
        if usage:
            raise sequence_flaw("tokens were paid without a contract")
        return None
    known = {entry.version: index for index, entry in verdicts.items()}
    for index, entry in entries_on_verdicts(entries).items():
        if known.get(entry.version, index) >= index:
            raise sequence_flaw(
                f"entry {index} rests on version {entry.version} of the verdict, which was not there yet"
            )
    governance = tuple(entry for entry in entries.values() if isinstance(entry, GovernanceEntry))
    if [entry.version for entry in governance] not in ([], [1]):
        raise sequence_flaw("governance was asked twice, or about another version than the first")
    moves = tuple((index, entry) for index, entry in entries.items() if isinstance(entry, ContractTransition))
    deal = ContractHistory(
        award=award,
        governance=governance,
        times=_contract_times(award, entries.values()),
        transitions=moves,
        usage=usage,
    )
    if next(iter(verdicts.values())).criteria != deal.criteria:
        raise sequence_flaw("the first verdict was reached by other criteria than the contract's")
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
        raise sequence_flaw(f"an entry of the contract has the time {short(entry.at)}, which cannot be read") from None
    if moment.tzinfo is None:
        raise sequence_flaw(f"an entry of the contract has the time {short(entry.at)}, which has no zone")
    return moment


def entries_on_verdicts(entries: Mapping[int, ContractEntry]) -> dict[int, SettlementEntry | GovernanceEntry]:
    """The entries that rest on a version of the verdict."""
    return {index: entry for index, entry in entries.items() if isinstance(entry, SettlementEntry | GovernanceEntry)}
