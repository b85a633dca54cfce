"""Which agents were given the input of which work, and under which contracts that is not recorded yet."""

from typing import Any

from sqlalchemy import Connection, Select, select

from meruit.model.access import Scope
from meruit.model.contract import ContractState
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

_READS = Rows[str]("input_read")
"""By work and agent: reads that this transaction records."""
_OPEN = (str(ContractState.AWARDED), str(ContractState.EXECUTING))
_READ_BEFORE = (
    "SELECT 1 FROM contracts WHERE tenant = ? AND work_id = ? AND agent_id = ? AND input_read_at IS NOT NULL LIMIT 1"
)


def has_read_input(writing: WriteTransaction, tenant: str, work_id: str, agent_id: str) -> bool:
    """Whether the agent was given the input of the work before, under any contract."""
    if _READS.get(writing, tenant, work_id, agent_id):
        return True
    return bool(writing.ask(_READ_BEFORE, tenant, work_id, agent_id))


def find_unread(writing: WriteTransaction, tenant: str, work_id: str, agent_id: str) -> list[str]:
    """The open contracts of the agent on the work that have no read yet; remembers that there is one now."""
    _READS.put(writing, agent_id, tenant, work_id, agent_id)
    return [row.id for row in writing.read(_select_unread(tenant, work_id, agent_id))]


def is_first_read(connection: Connection, scope: Scope, work_id: str) -> bool:
    """Whether an agent has an open contract on the work under which it has not read the input yet."""
    query = _select_unread(scope.tenant, work_id, scope.agent_id or "")
    return connection.execute(query.limit(1)).first() is not None


def _select_unread(tenant: str, work_id: str, agent_id: str) -> Select[Any]:
    table = tables.contracts
    return (
        select(table.c.id)
        .where(
            table.c.tenant == tenant,
            table.c.work_id == work_id,
            table.c.agent_id == agent_id,
            table.c.input_read_at.is_(None),
            table.c.state.in_(_OPEN),
        )
        .order_by(table.c.seq)
    )
