"""What other packages may use of stored contracts, work and the ledger. Tables and SQL are in store."""

from meruit.contracts.store.ledger import (
    MAX_LINES,
    Balance,
    Statement,
    balances,
    books,
    statement,
    tenants,
)
from meruit.contracts.store.read import (
    ContractFilter,
    ContractFilterValue,
    ContractSnapshot,
    ContractView,
    encode,
    find,
    load_snapshot,
    load_snapshot_with_history,
    load_snapshots,
    page,
    to_agent_contract,
    to_contract_view,
)
from meruit.contracts.store.transaction import (
    Actor,
    ContractRequest,
    new_salt,
)
from meruit.contracts.store.work import (
    SubmitWork,
    WorkRow,
    WorkView,
    find_visible,
    input_of,
    to_agent_work,
    to_work_view,
)
from meruit.contracts.store.work import (
    find as find_work,
)
from meruit.contracts.store.work import (
    page as page_work,
)

__all__ = [
    "MAX_LINES",
    "Actor",
    "Balance",
    "ContractFilter",
    "ContractFilterValue",
    "ContractRequest",
    "ContractSnapshot",
    "ContractView",
    "Statement",
    "SubmitWork",
    "WorkRow",
    "WorkView",
    "balances",
    "books",
    "encode",
    "find",
    "find_visible",
    "find_work",
    "input_of",
    "load_snapshot",
    "load_snapshot_with_history",
    "load_snapshots",
    "new_salt",
    "page",
    "page_work",
    "statement",
    "tenants",
    "to_agent_contract",
    "to_agent_work",
    "to_contract_view",
    "to_work_view",
]
