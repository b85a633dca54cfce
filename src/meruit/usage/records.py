"""What other packages may use of stored usage runs and observations. Tables and SQL are in store."""

from meruit.usage.store.acknowledge import Acknowledge
from meruit.usage.store.by_contract import (
    find_by_contract,
    find_in_transaction,
)
from meruit.usage.store.due import (
    UsageRunFilter,
    find_runs,
)
from meruit.usage.store.observe_now import ObserveNow
from meruit.usage.store.publish import contract_of
from meruit.usage.store.read import (
    AccountTotal,
    count_by_account,
    count_by_status,
    count_up_to,
    find,
    find_observations,
    iterate_all,
    load_commitment,
    page,
    page_sorted,
    sum_accounts,
)
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_prices import RecordPrices
from meruit.usage.store.record_runs import RecordRun, RecordRuns
from meruit.usage.store.rows import (
    MAX_TOTAL_TOKENS,
    find_run,
    load_run,
)
from meruit.usage.store.tampering import find_tampered_run

__all__ = [
    "MAX_TOTAL_TOKENS",
    "AccountTotal",
    "Acknowledge",
    "ObserveNow",
    "RecordObservations",
    "RecordPrices",
    "RecordRun",
    "RecordRuns",
    "RunObservation",
    "UsageRunFilter",
    "contract_of",
    "count_by_account",
    "count_by_status",
    "count_up_to",
    "find",
    "find_by_contract",
    "find_in_transaction",
    "find_observations",
    "find_run",
    "find_runs",
    "find_tampered_run",
    "iterate_all",
    "load_commitment",
    "load_run",
    "page",
    "page_sorted",
    "sum_accounts",
]
