"""Which contracts were paid for a run, as the audit log says: rows alone could be deleted, and the run paid again.

The log names every contract that was ever paid for a run. Whether one still is, its own entries say.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from meruit.log.entries import Entry, ReversalEntry, RunPaymentEntry, SettlementEntry, read_entry, run_sequence
from meruit.store.database import fetch
from meruit.store.log_guard import read_proven_entries
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meruit.model.contract import Contract

_CHANGED = Rows[Mapping[str, bool]]("paid_run")
"""Contracts that this group paid for a run, or took the payment back from; the log does not hold them yet."""
_BODIES = "SELECT body FROM log_leaves WHERE tenant = ? AND contract_id = ? ORDER BY contract_seq"


def record_run_payment(writing: WriteTransaction, tenant: str, contract: "Contract", run: str) -> None:
    """Record that the contract was paid for this run; raises RecordTampered where earlier payments are hidden."""
    name = run_sequence(run)
    number = writing.next_in_contract(tenant, name)
    entry = RunPaymentEntry(writing.now.written, tenant=tenant, run=run, number=number, contract=contract.id)
    writing.append(entry, tenant, name, number)
    _change(writing, tenant, contract, run, live=True)


def forget_run_payment(writing: WriteTransaction, tenant: str, contract: "Contract") -> None:
    """Let the group know that the payment was reversed; later ones read it from the contract's entries."""
    if contract.evidence is not None:
        _change(writing, tenant, contract, contract.evidence, live=False)


def find_paid_contract(writing: WriteTransaction, tenant: str, contract: "Contract", run: str | None) -> str | None:
    """Another contract that was paid for the same run; None without one. Raises RecordTampered."""
    if run is None:
        return None
    changed = _CHANGED.get(writing, tenant, run) or {}
    for one in _payers(read_proven_entries(writing, tenant, run_sequence(run)), changed):
        live = changed.get(one)
        if one != contract.id and (_is_paid(read_proven_entries(writing, tenant, one)) if live is None else live):
            return one
    return None


def find_paid_contract_now(connection: "Connection", tenant: str, contract: "Contract", run: str | None) -> str | None:
    """The same as is recorded now, for those who only read."""
    if run is None:
        return None
    payers = _payers(_read_entries(connection, tenant, run_sequence(run)), {})
    return next(
        (one for one in payers if one != contract.id and _is_paid(_read_entries(connection, tenant, one))), None
    )


def _change(writing: WriteTransaction, tenant: str, contract: "Contract", run: str, *, live: bool) -> None:
    changed = _CHANGED.get(writing, tenant, run) or {}
    _CHANGED.put(writing, {**changed, contract.id: live}, tenant, run)


def _payers(entries: Iterable[Entry], changed: Mapping[str, bool]) -> list[str]:
    """The contracts that were ever paid for a run, each once."""
    named = [one.contract for one in entries if isinstance(one, RunPaymentEntry)]
    return [*dict.fromkeys([*named, *changed])]


def _is_paid(entries: Iterable[Entry]) -> bool:
    """Whether the last payment of a contract was not reversed."""
    last: Entry | None = None
    for one in entries:
        if isinstance(one, SettlementEntry | ReversalEntry):
            last = one
    return isinstance(last, SettlementEntry)


def _read_entries(connection: "Connection", tenant: str, name: str) -> list[Entry]:
    return [read_entry(bytes(body)) for (body,) in fetch(connection, _BODIES, tenant, name)]
