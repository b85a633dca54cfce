"""Compare the runs that a contract pays for with the audit log."""

from sqlalchemy import select

from meruit.log.entries import UsageEntry, read_entry
from meruit.store import tables
from meruit.store.log_guard import find_forged_leaf
from meruit.store.transaction import WriteTransaction
from meruit.usage.logged import RecordedUsage, find_usage_difference
from meruit.usage.store.publish import contract_of

_LEAVES = "SELECT seq, body FROM log_leaves WHERE tenant = ? AND contract_id = ? ORDER BY contract_seq"
_OBSERVATIONS = "SELECT body FROM usage_observations WHERE tenant = ? AND run_id = ? ORDER BY number"


def find_tampered_run(writing: WriteTransaction, tenant: str, contract_id: str) -> str | None:
    """The first run of a contract that is not what the log commits to; None where all are.

    Only what was there before this transaction is compared.
    """
    table = tables.usage_runs
    query = select(table.c.id, table.c.body, table.c.salt, table.c.status, table.c.verdict)
    rows = writing.read(query.where(table.c.tenant == tenant, table.c.contract_id == contract_id))
    for row in rows:
        leaves = [(int(seq), bytes(body)) for seq, body in writing.fetch(_LEAVES, tenant, contract_of(row.id))]
        if find_forged_leaf(writing, leaves) is not None:
            return str(row.id)
        observed = [bytes(one) for (one,) in writing.fetch(_OBSERVATIONS, tenant, row.id)]
        salt = None if row.salt is None else bytes(row.salt)
        recorded = RecordedUsage(
            body=bytes(row.body), salt=salt, status=row.status, verdict=bytes(row.verdict), observations=observed
        )
        entries = [entry for _, body in leaves if isinstance(entry := read_entry(body), UsageEntry)]
        if find_usage_difference(recorded, entries) is not None:
            return str(row.id)
    return None
