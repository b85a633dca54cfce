"""Compare what governance remembers of agents under contract with the dossiers that it was made from.

The log commits to the dossier of each completed contract, with the facts that are remembered of it. So statistics of
agents, the dealings of pairs and the fingerprints of outputs can be computed again. What a contract without a dossier
added is not known: governance was off, or the outcome was erased. Then less is compared.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, Table, and_, select, tuple_

from meruit.governance.history import AgentHistory, baselines, recent, update_history
from meruit.governance.resemblance import keys_of
from meruit.model.governance import GovernanceCheck, RecordedOutput
from meruit.store import tables

PAGE = 256
"""Contracts, or pairs, of one slice."""
AGENTS = 4
"""Agents of one slice; each may have many contracts."""
MAX_MISSING = 10
"""Most deleted rows of one table that are named."""
DAY_MICROS = 86_400 * 1_000_000
CONTRACTS = "contract"
"""The kind of history that contracts are compared with."""
Difference = tuple[str, str]
"""Place and message."""
Pair = tuple[str, str, str]
"""Tenant, agent and consumer; an empty name stands for all."""


@dataclass(slots=True)
class _Dealt:
    """How often a pair dealt with each other."""

    outcomes: int = 0
    with_bonus: int = 0
    unknown: int = 0
    """Outcomes without a dossier."""

    def fits(self, outcomes: int, with_bonus: int) -> bool:
        """Whether a row may say so."""
        return outcomes == self.outcomes and 0 <= with_bonus - self.with_bonus <= self.unknown


class HistoryScan:
    """How far the history is compared, slice by slice."""

    def __init__(self, size: int) -> None:
        """Compare what the first `size` entries of the log led to."""
        self._size = size
        self._dealt: dict[Pair, _Dealt] = defaultdict(_Dealt)
        self._agents: set[tuple[str, str]] = set()
        """Tenant and agent, of those whose row was not found yet."""
        self._after: tuple[Any, ...] | None = None
        """The key of the last row."""
        self._steps: list[Callable[[Connection], Iterator[Difference]]] = [
            self._read_contracts,
            self._read_dealings,
            self._read_agents,
        ]
        self.count = 0
        """Rows that were compared."""

    @property
    def done(self) -> bool:
        """Whether all is compared."""
        return not self._steps

    def read_page(self, connection: Connection) -> list[Difference]:
        """Compare the next page; what differs."""
        return [*self._steps[0](connection)]

    # Any: rows of SQLAlchemy.
    def _page(self, connection: Connection, query: Select[Any], table: Table, size: int) -> list[Any]:
        """The next rows of a table; a short page ends its step."""
        keys = [*table.primary_key.columns]
        if self._after is not None:
            query = query.where(tuple_(*keys) > tuple_(*self._after))
        rows = [*connection.execute(query.order_by(*keys).limit(size))]
        self.count += len(rows)
        self._after = tuple(getattr(rows[-1], one.name) for one in keys) if rows else None
        if len(rows) < size:
            self._after = None
            del self._steps[0]
        return rows

    def _read_contracts(self, connection: Connection) -> Iterator[Difference]:
        """Count the dealings of pairs, and look for the outputs that are to be found again."""
        for row in self._page(connection, _completed(), tables.contracts, PAGE):
            if row.evidence_leaf >= self._size:
                continue
            checked = _read_check(row.body)
            _count(self._dealt, row, checked)
            self._agents.add((row.tenant, row.agent_id))
            if checked is not None and checked.output is not None:
                yield from _compare_output(connection, row, checked.output)

    def _read_dealings(self, connection: Connection) -> Iterator[Difference]:
        """Compare the dealings of pairs with what their contracts add up to."""
        # Contracts that were completed since are counted in the transaction that reads the rows.
        newer: dict[Pair, _Dealt] = defaultdict(_Dealt)
        for row in connection.execute(_completed().where(tables.outcomes.c.evidence_leaf >= self._size)):
            _count(newer, row, _read_check(row.body))
        for row in self._page(connection, select(tables.dealings), tables.dealings, PAGE):
            pair = row.tenant, row.agent_id, row.consumer_id
            before, since = self._dealt.pop(pair, _Dealt()), newer[pair]
            dealt = _Dealt(
                before.outcomes + since.outcomes, before.with_bonus + since.with_bonus, before.unknown + since.unknown
            )
            if not dealt.fits(row.outcomes, row.with_bonus):
                yield f"dealings {'/'.join(pair)}", "not what the outcomes of their contracts add up to"
        if self._steps[0] != self._read_dealings:
            yield from _name_gone("dealings", self._dealt)

    def _read_agents(self, connection: Connection) -> Iterator[Difference]:
        """Compare the statistics of each agent, and what each dossier was given of them."""
        table = tables.agent_histories
        query = select(table).where(table.c.kind == CONTRACTS)
        for row in self._page(connection, query, table, AGENTS):
            self._agents.discard((row.tenant, row.agent_id))
            contracts, outcomes = tables.contracts.c, tables.outcomes.c
            own = _completed().where(contracts.tenant == row.tenant, contracts.agent_id == row.agent_id)
            yield from _compare_agent(row, connection.execute(own.order_by(outcomes.evidence_leaf)))
        if not self._steps:
            yield from _name_gone(table.name, self._agents)


# Any, here and below: rows of SQLAlchemy.
def _completed() -> Select[Any]:
    """Contracts with an outcome, each with the dossier that it was governed by."""
    contracts, outcomes, checks = tables.contracts, tables.outcomes, tables.governance_checks
    of_outcome = and_(outcomes.c.tenant == contracts.c.tenant, outcomes.c.id == contracts.c.outcome_id)
    of_first = and_(
        checks.c.tenant == contracts.c.tenant, checks.c.outcome_id == contracts.c.outcome_id, checks.c.version == 1
    )
    columns = [contracts.c[name] for name in ("tenant", "id", "agent_id", "consumer_id", "outcome_id")]
    joined = contracts.join(outcomes, of_outcome).outerjoin(checks, of_first)
    return select(*columns, outcomes.c.evidence_leaf, checks.c.body, checks.c.at).select_from(joined)


def _read_check(body: bytes | None) -> GovernanceCheck | None:
    """The dossier of a contract; None without one, and where it was changed, which its own row shows."""
    try:
        return None if body is None else GovernanceCheck.from_json(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _count(dealt: dict[Pair, _Dealt], row: Any, checked: GovernanceCheck | None) -> None:
    agent, consumer = row.agent_id, row.consumer_id
    for pair in ((agent, consumer), (agent, ""), ("", consumer), ("", "")):
        one = dealt[row.tenant, *pair]
        one.outcomes += 1
        one.unknown += checked is None
        one.with_bonus += checked is not None and checked.dossier.earned_bonus


def _compare_output(connection: Connection, row: Any, output: RecordedOutput) -> Iterator[Difference]:
    """The rows by which an output is found when it is given again: by this contract, or by an earlier one."""
    table, keys = tables.first_outputs, {*keys_of(output)}
    query = select(table.c.output_hash, table.c.contract_id, table.c.signature).where(
        table.c.tenant == row.tenant,
        table.c.output_hash.in_(keys),
        table.c.agent_id == row.agent_id,
        table.c.input_hash == output.task,
    )
    found = connection.execute(query).all()
    changed = [one.output_hash for one in found if one.contract_id == row.id and one.signature != output.signature]
    gone = keys - {one.output_hash for one in found}
    where = f"first_outputs {row.tenant}/{row.id}"
    if changed:
        yield where, f"{len(changed)} rows are not what the dossier of the contract says"
    if gone:
        yield where, f"{len(gone)} of {len(keys)} rows are gone"


def _compare_agent(row: Any, completed: Iterable[Any]) -> Iterator[Difference]:
    """Replay the outcomes of one agent, in the order of the log."""
    memory = AgentHistory()
    for one in completed:
        checked = _read_check(one.body)
        if checked is None:
            # What it added is not known.
            return
        facts, given, day = checked.dossier.metrics, checked.dossier.history, one.at // DAY_MICROS
        expected = (
            *recent(memory, facts),
            memory.mismatches,
            baselines(memory, {fact.metric for fact in facts}, day),
        )
        if (given.margins, given.accuracies, given.latency_mismatches, given.baselines) != expected:
            yield f"governance_checks {one.tenant}/{one.outcome_id}/1", "its dossier had another history of the agent"
        mismatch = "latency_mismatch" in checked.result.names
        memory = update_history(memory, facts, day, mismatch=mismatch)
    if bytes(row.body) != memory.to_json():
        where = f"agent_histories {row.tenant}/{row.agent_id}/{row.kind}"
        yield where, "not what the dossiers of the agent's contracts lead to"


def _name_gone(table: str, keys: Iterable[tuple[str, ...]]) -> Iterator[Difference]:
    return ((f"{table} {'/'.join(key)}", "the row is gone") for key in islice(sorted(keys), MAX_MISSING))
