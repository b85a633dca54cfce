"""Replay the transfers of money from the audit log; needs no database, so third parties can do it."""

from meruit.contracts import postings as ledger
from meruit.contracts.invariants import Transfer
from meruit.contracts.postings import Parties, Posting
from meruit.log.entries import AwardEntry, MoneyEntry, ReleaseEntry, ReversalEntry, SettlementEntry
from meruit.model.money import Bill


def transfer_from_entry(
    index: int, entry: MoneyEntry, parties: Parties, settled: dict[tuple[str, int], tuple[Posting, ...]]
) -> Transfer:
    """The transfer that a log entry records; adds settlements to `settled` for later reversals."""
    operation, number, postings = _postings_from_entry(entry, parties, settled)
    return Transfer(
        leaf=index,
        contract_id=entry.contract,
        operation=operation,
        number=number,
        currency=entry.currency,
        postings=tuple(sorted(postings)),
    )


def _postings_from_entry(
    entry: MoneyEntry, parties: Parties, settled: dict[tuple[str, int], tuple[Posting, ...]]
) -> tuple[str, int, tuple[Posting, ...]]:
    match entry:
        case AwardEntry():
            return "hold", 0, ledger.hold(parties, entry.hold_micros)
        case SettlementEntry():
            paid = settled[entry.contract, entry.number] = ledger.settle(parties, _as_bill(entry))
            return "settle", entry.number, paid
        case ReversalEntry():
            return "reverse", entry.number, ledger.reverse(settled.get((entry.contract, entry.number), ()))
        case ReleaseEntry():
            return "release", 0, ledger.release(parties, entry.hold_micros)


def _as_bill(entry: SettlementEntry) -> Bill:
    return Bill(
        currency=entry.currency,
        lines=[],
        base=entry.base_micros,
        bonus=entry.bonus_micros,
        penalty=entry.penalty_micros,
        total=entry.total_micros,
        fee=entry.fee_micros,
        payout=entry.payout_micros,
        released=entry.released_micros,
    )
