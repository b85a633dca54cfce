"""The tables. Tenant first in every key; moments are whole microseconds; text and bytes as they are.

A table is made by SQLAlchemy when a query first uses it, with all others, in schema/. Its name and its columns are
known without SQLAlchemy, from layout.py: a command that records one outcome needs no more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meruit.store.layout import COLUMNS

if TYPE_CHECKING:
    from meruit.store.schema.base import metadata
    from meruit.store.schema.benchmarks import benchmark_runs, benchmarks, criterion_runs, task_runs
    from meruit.store.schema.contracts import (
        EXACT_BALANCES,
        IS_PARTY,
        balances,
        contract_transitions,
        contracts,
        postings,
        settlements,
        transfers,
        works,
    )
    from meruit.store.schema.evaluations import (
        dataset_chunks,
        datasets,
        evaluation_cases,
        evaluation_figures,
        evaluation_segments,
        evaluations,
    )
    from meruit.store.schema.events import cursors, deliveries, events, leases, webhooks
    from meruit.store.schema.gate import agent_runs, agent_steps, submissions, workers
    from meruit.store.schema.governance import (
        agent_histories,
        agent_tries,
        dealings,
        first_outputs,
        governance_checks,
        output_sketches,
        try_sketches,
    )
    from meruit.store.schema.judges import judge_calibrations, judge_calls, judge_tokens, judge_votes
    from meruit.store.schema.log import checkpoints, log_keys, log_leaves, log_state, log_tiles
    from meruit.store.schema.outcomes import (
        criteria,
        criteria_names,
        outcomes,
        verdict_runs,
        verdict_segments,
        verdicts,
    )
    from meruit.store.schema.review import review_draws, review_labels, reviews
    from meruit.store.schema.service import blobs, idempotency, key_use, keys, sessions
    from meruit.store.schema.usage import (
        usage_account_totals,
        usage_accounts,
        usage_calls,
        usage_fetches,
        usage_observations,
        usage_runs,
    )
else:

    class LazyTable:
        """A table by its name; all else of it is SQLAlchemy's, which is loaded then."""

        is_clause_element = False
        """Tells SQLAlchemy to take what `__clause_element__` gives."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __clause_element__(self) -> Any:
            """SQLAlchemy's table, for its queries."""
            return import_module("meruit.store.schema").metadata.tables[self.name]

        def __getattr__(self, attribute: str) -> Any:
            """The columns and whatever else is asked of SQLAlchemy's table."""
            value = getattr(self.__clause_element__(), attribute)
            if attribute in ("c", "columns"):
                setattr(self, attribute, value)
            return value

    globals().update({name: LazyTable(name) for name in COLUMNS})

    def __getattr__(name: str) -> Any:
        if name in ("metadata", "EXACT_BALANCES", "IS_PARTY"):
            return getattr(import_module("meruit.store.schema"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EXACT_BALANCES",
    "IS_PARTY",
    "agent_histories",
    "agent_runs",
    "agent_steps",
    "agent_tries",
    "balances",
    "benchmark_runs",
    "benchmarks",
    "blobs",
    "checkpoints",
    "contract_transitions",
    "contracts",
    "criteria",
    "criteria_names",
    "criterion_runs",
    "cursors",
    "dataset_chunks",
    "datasets",
    "dealings",
    "deliveries",
    "evaluation_cases",
    "evaluation_figures",
    "evaluation_segments",
    "evaluations",
    "events",
    "first_outputs",
    "governance_checks",
    "idempotency",
    "judge_calibrations",
    "judge_calls",
    "judge_tokens",
    "judge_votes",
    "key_use",
    "keys",
    "leases",
    "log_keys",
    "log_leaves",
    "log_state",
    "log_tiles",
    "metadata",
    "outcomes",
    "output_sketches",
    "postings",
    "review_draws",
    "review_labels",
    "reviews",
    "sessions",
    "settlements",
    "submissions",
    "task_runs",
    "transfers",
    "try_sketches",
    "usage_account_totals",
    "usage_accounts",
    "usage_calls",
    "usage_fetches",
    "usage_observations",
    "usage_runs",
    "verdict_runs",
    "verdict_segments",
    "verdicts",
    "webhooks",
    "workers",
    "works",
]
