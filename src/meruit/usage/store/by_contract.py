"""Find the usage runs of a contract."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, select

from meruit.model.metering import MeteredRun, UsageRecord
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.rows import load_runs, record_of

_runs = tables.usage_runs
_RUN_IDS = Rows[tuple[str, ...]]("runs_of_contract")
"""Runs that this transaction records, by the contract that they name."""
_FORMER_CONTRACTS = Rows[str]("former_contract_of_run")


def find_by_contract(connection: Connection, tenant: str, contract_id: str) -> list[UsageRecord]:
    """Find the runs that name the contract, in the order in which they were recorded."""
    return [record_of(row) for row in connection.execute(_select_runs(tenant, contract_id, _runs))]


def find_in_transaction(writing: WriteTransaction, tenant: str, contract_id: str) -> list[UsageRecord]:
    """Find the runs within a transaction, including those that it has recorded itself."""
    found = [row.id for row in writing.read(_select_runs(tenant, contract_id, _runs.c.id))]
    fresh = _RUN_IDS.get(writing, tenant, contract_id) or ()
    stored = load_runs(writing, tenant, [*found, *fresh])
    # The transaction may have moved one of them to another contract.
    return [one.record for one in stored.values() if one.record.run.contract_id == contract_id]


def remember(writing: WriteTransaction, tenant: str, records: Iterable[UsageRecord]) -> list[str]:
    """Remember the contracts that these runs name; return them, and those that the runs named before."""
    runs = [one.run for one in records]
    for run in runs:
        if run.contract_id:
            known = _RUN_IDS.get(writing, tenant, run.contract_id) or ()
            _RUN_IDS.put(writing, (*known, run.id), tenant, run.contract_id)
    left = (_FORMER_CONTRACTS.get(writing, tenant, run.id) or "" for run in runs)
    return [one for one in dict.fromkeys((*(run.contract_id for run in runs), *left)) if one]


def remember_former_contract(writing: WriteTransaction, tenant: str, run: MeteredRun) -> None:
    """Remember the contract that a run no longer names."""
    _FORMER_CONTRACTS.put(writing, run.contract_id, tenant, run.id)


# Any: the columns that the caller selects.
def _select_runs(tenant: str, contract_id: str, *what: Any) -> Select[Any]:
    query = select(*what).where(_runs.c.tenant == tenant, _runs.c.contract_id == contract_id)
    return query.order_by(_runs.c.seq)
