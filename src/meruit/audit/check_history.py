"""Compare what governance remembers of agents under contract with the dossiers that it was made from.

The log commits to the dossier of each completed contract, with the facts that are remembered of it. So statistics of
agents, the dealings of pairs and the fingerprints of outputs can be computed again. What a contract without a dossier
added is not known: governance was off, or the outcome was erased. Then less is compared.

Outcomes are read agent by agent, each agent's in the order of the log. Where an agent's last outcome is read, its rows
are compared in the same transaction. So what is completed meanwhile is counted too, and no problem.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, Table, and_, case, func, or_, select, tuple_

from meruit.governance.history import AgentHistory, baselines, recent, update_history
from meruit.governance.resemblance import keys_of
from meruit.model.governance import GovernanceCheck, RecordedOutput
from meruit.store import tables

PAGE = 256
"""Contracts of one slice."""
MAX_PASSED = 4_096
"""Outcomes without a contract that one slice passes over."""
MAX_CONSUMERS = 10_000
"""Consumers of one agent that are counted one by one; the others are compared by sums."""
KEY_BYTES = 16
FETCH_ROWS = 1_000
MAX_FOUND = 1_000
"""Most differences of one slice that are named."""
MAX_MISSING = 10
"""Most deleted rows of one agent that are named."""
DAY_MICROS = 86_400 * 1_000_000
CONTRACTS = "contract"
"""The kind of history that contracts are compared with."""
Difference = tuple[str, str]
"""Place and message."""
_LAST = 2**63 - 1
"""A number that no outcome has."""
_NOT_SUM = "not what the outcomes of their contracts add up to"


class _Agent(NamedTuple):
    tenant: str
    id: str


_FIRST = _Agent("", "")
"""Before every agent."""


class _Dealt(NamedTuple):
    """How often an agent dealt with a consumer, or with all."""

    outcomes: int = 0
    with_bonus: int = 0
    unknown: int = 0
    """Outcomes without a dossier."""

    def add(self, checked: GovernanceCheck | None, weight: int = 1) -> "_Dealt":
        """One outcome more."""
        bonus = weight if checked is not None and checked.dossier.earned_bonus else 0
        unknown = weight if checked is None else 0
        return _Dealt(self.outcomes + weight, self.with_bonus + bonus, self.unknown + unknown)

    def add_row(self, outcomes: int, with_bonus: int, weight: int) -> "_Dealt":
        """What a row says more."""
        return _Dealt(self.outcomes + outcomes * weight, self.with_bonus + with_bonus * weight)

    def fits(self, outcomes: int, with_bonus: int) -> bool:
        """Whether a row may say so."""
        return outcomes == self.outcomes and 0 <= with_bonus - self.with_bonus <= self.unknown


_NONE = _Dealt()


@dataclass(slots=True)
class _Past:
    """What the outcomes of one agent lead to, as far as they are read."""

    agent: _Agent
    memory: AgentHistory | None = field(default_factory=AgentHistory)
    """None once it is not known: an outcome has no dossier."""
    leaf: int = -1
    """Of the last outcome."""
    total: _Dealt = _NONE
    dealt: dict[str, _Dealt] = field(default_factory=dict)
    """By consumer, of the first MAX_CONSUMERS."""
    rest: _Dealt = _NONE
    """Of all further ones: a sum, in which each consumer has a weight that no database writer can foresee."""

    def copy(self) -> "_Past":
        """The same, for a slice that may fail."""
        return replace(self, dealt=dict(self.dealt))

    def count(self, consumer: str, checked: GovernanceCheck | None, key: bytes) -> None:
        """Count one outcome more."""
        self.total = self.total.add(checked)
        if consumer in self.dealt or len(self.dealt) < MAX_CONSUMERS:
            self.dealt[consumer] = self.dealt.get(consumer, _NONE).add(checked)
        else:
            self.rest = self.rest.add(checked, _weigh(consumer, key))


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a slice begins."""

    after: tuple[str, str, int] = (*_FIRST, -1)
    """Tenant, agent and number of the last outcome."""
    compared: _Agent = _FIRST
    """The last agent whose rows were compared."""
    past: _Past | None = None
    """Of the agent whose outcomes are not all read."""
    is_read: bool = False
    """Whether all outcomes are read, and only sums are left."""


class HistoryScan:
    """How far the history is compared, slice by slice."""

    def __init__(self) -> None:
        self._place = _Position()
        self._key = token_bytes(KEY_BYTES)
        self.done = False
        """Whether all is compared."""
        self.count = 0
        """Rows that were compared."""

    def read_page(self, connection: Connection) -> list[Difference]:
        """Compare the next page; what differs. A page that fails may be read again."""
        if self._place.is_read:
            found = [*_compare_sums(connection)]
            self.done = True
            return found
        page, found = _Page(connection, self._place, self._key), []
        for one in page.compare():
            if len(found) < MAX_FOUND:
                found.append(one)
        self._place = page.find_next()
        self.count += page.count
        return found


class _Page:
    """The outcomes of one slice, and the rows of the agents who have no others."""

    def __init__(self, connection: Connection, place: _Position, key: bytes) -> None:
        self._connection, self._place, self._key = connection, place, key
        self._after = place.after
        self._past = None if place.past is None else place.past.copy()
        self._ended: dict[_Agent, _Past] = {}
        """Agents whose outcomes are all read, in order."""
        self._is_last = False
        self.count = 0
        """Rows that were compared."""

    def compare(self) -> Iterator[Difference]:
        """Read the outcomes, then the rows that follow from them."""
        yield from self._read_outcomes()
        if self._ended or self._is_last:
            yield from self._compare_histories()
            yield from self._compare_dealings()

    def find_next(self) -> _Position:
        """Where the slice after this one begins."""
        compared = next(reversed(self._ended), self._place.compared)
        return _Position(self._after, compared, self._past, self._is_last)

    def _read_outcomes(self) -> Iterator[Difference]:
        passed = contracts = 0
        # The options of a connection would hold for every statement after this one.
        options = {"yield_per": PAGE}
        with closing(self._connection.execute(_outcomes_after(self._after), execution_options=options)) as rows:
            for row in rows:
                agent = _Agent(row.tenant, row.agent_id)
                if self._past is not None and self._past.agent != agent:
                    self._end(self._past)
                if contracts == PAGE:
                    break
                passed += 1
                self._after = (*agent, row.seq)
                if row.contract_id is not None:
                    contracts += 1
                    self._past = self._past or _Past(agent)
                    yield from self._replay(self._past, row)
            else:
                self._is_last = passed < MAX_PASSED
        if self._is_last and self._past is not None:
            self._end(self._past)
        self.count += contracts

    def _end(self, past: _Past) -> None:
        """Note that all outcomes of an agent are read."""
        self._ended[past.agent] = past
        self._past = None
        # What the agent completes from now on is left to the next check.
        self._after = (*past.agent, _LAST)

    # Any, here and below: rows of SQLAlchemy.
    def _replay(self, past: _Past, row: Any) -> Iterator[Difference]:
        """Add an outcome to the past of its agent, and compare what its dossier was given with the past before it."""
        checked = _read_check(row.body)
        past.count(row.consumer_id, checked, self._key)
        if row.evidence_leaf <= past.leaf:
            yield f"outcomes {row.tenant}/{row.id}", "its number is not in the order of the log"
        past.leaf = row.evidence_leaf
        if checked is None:
            # What it added is not known.
            past.memory = None
            return
        if checked.output is not None:
            yield from _compare_output(self._connection, row, checked.output)
        if past.memory is None:
            return
        memory, facts, given, day = past.memory, checked.dossier.metrics, checked.dossier.history, row.at // DAY_MICROS
        expected = (*recent(memory, facts), memory.mismatches, baselines(memory, {fact.metric for fact in facts}, day))
        if (given.margins, given.accuracies, given.latency_mismatches, given.baselines) != expected:
            yield f"governance_checks {row.tenant}/{row.id}/1", "its dossier had another history of the agent"
        mismatch = "latency_mismatch" in checked.result.names
        past.memory = update_history(memory, facts, day, mismatch=mismatch)

    def _compare_histories(self) -> Iterator[Difference]:
        """Compare the statistics of each agent."""
        table = tables.agent_histories
        missing = {*self._ended}
        with closing(self._find_rows(table, select(table).where(table.c.kind == CONTRACTS))) as rows:
            for row in rows:
                agent = _Agent(row.tenant, row.agent_id)
                missing.discard(agent)
                self.count += 1
                past = self._ended.get(agent)
                if past is None:
                    led_to_it = self._has_contracts(agent)
                else:
                    led_to_it = past.memory is None or bytes(row.body) == past.memory.to_json()
                if not led_to_it:
                    where = f"{table.name} {'/'.join(agent)}/{row.kind}"
                    yield where, "not what the dossiers of the agent's contracts lead to"
        yield from _name_gone(table, missing)

    def _compare_dealings(self) -> Iterator[Difference]:
        """Compare how often each agent dealt with each consumer, and with all."""
        table = tables.dealings
        missing = {agent: {"", *past.dealt} for agent, past in self._ended.items()}
        rest = dict.fromkeys(self._ended, _NONE)
        with closing(self._find_rows(table, select(table).where(table.c.agent_id != ""))) as rows:
            for row in rows:
                agent, consumer = _Agent(row.tenant, row.agent_id), row.consumer_id
                said = row.outcomes, row.with_bonus
                self.count += 1
                past = self._ended.get(agent)
                if past is None:
                    fits = self._has_contracts(agent)
                elif consumer in missing[agent]:
                    missing[agent].discard(consumer)
                    fits = (past.dealt[consumer] if consumer else past.total).fits(*said)
                else:
                    rest[agent] = rest[agent].add_row(*said, _weigh(consumer, self._key))
                    fits = past.rest != _NONE
                if not fits:
                    yield f"{table.name} {'/'.join(agent)}/{consumer}", _NOT_SUM
        for agent, past in self._ended.items():
            yield from _name_gone(table, ((*agent, consumer) for consumer in missing[agent]))
            if past.rest != _NONE and not past.rest.fits(*rest[agent][:2]):
                yield f"{table.name} {'/'.join(agent)}", f"of some consumers, {_NOT_SUM}"

    def _find_rows(self, table: Table, query: Select[Any]) -> Any:
        """The rows of the agents that ended, and of those between them, who may have no outcome."""
        key = tuple_(table.c.tenant, table.c.agent_id)
        query = query.where(key > tuple_(*self._place.compared))
        if not self._is_last:
            query = query.where(key <= tuple_(*next(reversed(self._ended))))
        options = {"yield_per": FETCH_ROWS}
        return self._connection.execute(query.order_by(*table.primary_key.columns), execution_options=options)

    def _has_contracts(self, agent: _Agent) -> bool:
        """Whether an agent without outcomes in this slice completed its first contract after they were read."""
        of = tables.contracts.c
        own = select(of.id).where(of.tenant == agent.tenant, of.agent_id == agent.id, of.outcome_id.is_not(None))
        return self._connection.execute(own.limit(1)).first() is not None


def _outcomes_after(after: tuple[str, str, int]) -> Select[Any]:
    """Outcomes by agent, in the order of the log, with the contract and the dossier that they were governed by."""
    contracts, outcomes, checks = tables.contracts, tables.outcomes, tables.governance_checks
    of_contract = and_(
        contracts.c.tenant == outcomes.c.tenant,
        contracts.c.id == outcomes.c.contract_id,
        contracts.c.outcome_id == outcomes.c.id,
    )
    of_first = and_(
        checks.c.tenant == contracts.c.tenant, checks.c.outcome_id == contracts.c.outcome_id, checks.c.version == 1
    )
    keys = [outcomes.c[name] for name in ("tenant", "agent_id", "seq")]
    found = [outcomes.c.id, outcomes.c.evidence_leaf, contracts.c.consumer_id, checks.c.body, checks.c.at]
    # The left join keeps databases from beginning with contracts, which have no such order.
    joined = outcomes.outerjoin(contracts, of_contract).outerjoin(checks, of_first)
    query = select(*keys, *found, contracts.c.id.label("contract_id")).select_from(joined)
    # Of another tenant, an outcome without an agent would be greater too.
    query = query.where(outcomes.c.agent_id.is_not(None), tuple_(*keys) > tuple_(*after))
    return query.order_by(*keys).limit(MAX_PASSED)


def _weigh(consumer: str, key: bytes) -> int:
    """The weight of a consumer in sums, which only this check knows."""
    # A name that a database keeps has no half of a surrogate pair.
    return int.from_bytes(blake2b(consumer.encode(), key=key, digest_size=KEY_BYTES).digest(), "big")


def _read_check(body: bytes | None) -> GovernanceCheck | None:
    """The dossier of a contract; None without one, and where it was changed, which its own row shows."""
    try:
        return None if body is None else GovernanceCheck.from_json(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


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
    own = [one for one in found if one.contract_id == row.contract_id]
    changed = [one.output_hash for one in own if one.signature != output.signature]
    gone = keys - {one.output_hash for one in found}
    where = f"first_outputs {row.tenant}/{row.contract_id}"
    if changed:
        yield where, f"{len(changed)} rows are not what the dossier of the contract says"
    if gone:
        yield where, f"{len(gone)} of {len(keys)} rows are gone"


def _compare_sums(connection: Connection) -> Iterator[Difference]:
    """Compare the dealings of each consumer, and of all, with the sum of those of agents: in one statement."""
    table = tables.dealings
    sums = [
        func.sum(case((table.c.agent_id == "", -table.c[name]), else_=table.c[name]))
        for name in ("outcomes", "with_bonus")
    ]
    query = select(table.c.tenant, table.c.consumer_id).group_by(table.c.tenant, table.c.consumer_id)
    for row in connection.execute(query.having(or_(*(one != 0 for one in sums))).limit(MAX_FOUND)):
        yield f"{table.name} {row.tenant}//{row.consumer_id}", _NOT_SUM


def _name_gone(table: Table, keys: Iterable[tuple[str, ...]]) -> Iterator[Difference]:
    return ((f"{table.name} {'/'.join(key)}", "the row is gone") for key in islice(sorted(keys), MAX_MISSING))
