"""Read contracts: one by id, pages by cursor, and the views for consumers and agents."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, case, func, select

from meruit.contracts.bill import is_adjusted
from meruit.contracts.hold_evidence import HoldView
from meruit.contracts.latency import find_latency_basis, times_of
from meruit.errors import NotFound, RecordTampered
from meruit.model.access import AgentScore, Scope, show_score
from meruit.model.canonical import canonical, from_canonical
from meruit.model.contract import (
    AgentContract,
    Contract,
    ContractState,
    Escrow,
    LatencyBasis,
    Terms,
)
from meruit.model.money import Bill, as_micros
from meruit.model.numbers import Number, in_units
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.verdict import GovernanceStatus, Verdict, VerificationResult
from meruit.outcomes.records import result_from
from meruit.store import tables
from meruit.store.paging import ListFilter, ListPage, read_page
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted

OPERATION_ORDER = (
    *("award", "read", "start", "complete", "dispute", "resolve", "release", "reverse", "void", "settle", "expire"),
)
"""The order of operations that one request makes at the same time."""
TIMESTAMP_COLUMNS = frozenset({"awarded_at", "expires_at", "input_read_at", "started_at", "completed_at", "settled_at"})
INDEXED = ("agent_id", "consumer_id", "provider_id", "work_id", "state")
"""Filters with an index of their own."""
UNINDEXED = ("domain", "currency")
COLUMNS = tuple(column.name for column in tables.contracts.columns if column.name != "tenant")


class ContractFilter(Record, frozen=True):
    """The filters of a list of contracts; those that are given must all hold."""

    agent_id: str | None = None
    consumer_id: str | None = None
    work_id: str | None = None
    state: str | None = None
    provider_id: str | None = None
    domain: str | None = None
    currency: str | None = None
    since: datetime | None = None
    """Awarded at this time or later."""
    until: datetime | None = None
    """Awarded before this time."""


class ContractJudgement(msgspec.Struct, frozen=True):
    """The latest verdict on a contract's output."""

    version: int
    result: VerificationResult | None
    """None once erased."""


class ContractTransitionView(Record, frozen=True):
    """One operation in the history of a contract."""

    operation: str
    at: datetime
    by: str
    reason: str


class ContractSnapshot(msgspec.Struct, frozen=True):
    """A contract with its verdict and its bill."""

    contract: Contract
    judgement: ContractJudgement | None = None
    bill: Bill | None = None
    """The bill of the live settlement."""
    history: tuple[ContractTransitionView, ...] | None = None
    """None where it was not requested."""
    on_hold: HoldView | None = None
    """Who stopped it, when and why; None where that was not requested, or where it does not wait for a person."""


class JudgementView(Record, frozen=True):
    """The verdict on a contract's output."""

    outcome_id: str
    version: int
    verdict: Verdict | None
    """None once erased."""
    success: bool | None
    score: float | None
    governance: GovernanceStatus | None
    governance_flags: list[str]


class LineView(Record, frozen=True):
    """One line of a bill."""

    rule: str
    part: str
    amount: str
    reason: str
    criterion_id: str | None


class SettlementView(Record, frozen=True):
    """A settlement, with amounts as decimal text."""

    number: int
    version: int
    base: str
    bonus: str
    penalty: str
    total: str
    fee: str
    payout: str
    released: str
    breakdown: dict[str, str]
    lines: list[LineView]


class ContractView(Record, frozen=True):
    """A contract as consumers and auditors see it."""

    id: str
    seq: int
    work_id: str
    agent_id: str
    consumer_id: str
    domain: str | None
    state: ContractState
    escrow: Escrow
    currency: str
    hold: str
    terms: dict[str, Any]
    awarded_at: datetime
    expires_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    settled_at: datetime | None
    hold_reason: str
    """Why the contract is held; empty when it is not."""
    outcome: JudgementView | None
    settlement: SettlementView | None
    provider_id: str | None = None
    """Who runs the agent, where that was named at the award."""
    history: list[ContractTransitionView] | None = None
    """Its operations, oldest first; only where one contract is read."""
    on_hold: HoldView | None = None
    """Who stopped it, when and why; only in lists of holds, and where one contract is read."""
    input_read_at: datetime | None = None
    """When the agent was first given the input."""
    latency_basis: LatencyBasis | None = None
    """From when the agent's time counts, where the agent itself hands in the output."""


def terms_body(terms: Terms) -> bytes:
    """The stored and digested form of terms; it has every field, so a later default changes nothing."""
    return canonical(terms.model_dump())


def terms_of(contract: Contract) -> Terms:
    """The terms of a contract."""
    return parse_terms(contract.terms)


@lru_cache(maxsize=1024)
def parse_terms(body: bytes) -> Terms:
    """Terms from their canonical form; cached, because many contracts share them."""
    return Terms.model_validate(from_canonical(body))


def format_terms(terms: Terms) -> dict[str, Any]:
    """Terms with amounts as decimal text."""
    shown: dict[str, Any] = terms.model_dump()
    for name in ("cpc_rate", "max_cpa_total", "max_token_cost"):
        shown[name] = _format_amount(shown[name])
    if terms.token_rates is not None:
        shown["token_rates"] = {name: _format_amount(rate) for name, rate in shown["token_rates"].items()}
    for name in ("max_penalty_rate", "platform_fee_rate"):
        shown[name] = str(shown[name])
    return shown


def _format_amount(amount: Number | None) -> str | None:
    return None if amount is None else in_units(as_micros(amount))


# Any: SQLAlchemy rows have their columns as untyped attributes.
def contract_from(row: Any) -> Contract:
    """The contract in a row."""
    return _contract([getattr(row, name) for name in COLUMNS])


def _contract(values: Sequence[Any]) -> Contract:
    found = dict(zip(COLUMNS, values, strict=True))
    for name in TIMESTAMP_COLUMNS:
        found[name] = None if found[name] is None else from_micros(found[name])
    found["state"] = ContractState(found["state"])
    found["escrow"] = Escrow(found["escrow"])
    found["disputed_from"] = None if found["disputed_from"] is None else ContractState(found["disputed_from"])
    return Contract(**found)


def row_of(contract: Contract) -> dict[str, Any]:
    """The columns of a contract, the tenant left out."""
    found = {name: getattr(contract, name) for name in COLUMNS}
    for name in TIMESTAMP_COLUMNS:
        found[name] = None if found[name] is None else to_micros(found[name])
    for name in ("state", "escrow", "disputed_from"):
        found[name] = None if found[name] is None else str(found[name])
    return found


def visible(scope: Scope) -> Select[Any]:
    """The contracts that the scope may see."""
    query = select(tables.contracts).where(tables.contracts.c.tenant == scope.tenant)
    # A scope without an agent id matches no contract: no recorded agent id is empty.
    return query.where(tables.contracts.c.agent_id == (scope.agent_id or "")) if scope.only_own else query


def find(connection: Connection, scope: Scope, contract_id: str) -> Contract:
    """One contract; raises NotFound."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    rows = connection.exec_driver_sql(FIND.replace("?", mark), (scope.tenant, contract_id)).all()
    return contract_from_rows(rows, scope, contract_id)


FIND = f"SELECT {', '.join(COLUMNS)} FROM contracts WHERE tenant = ? AND id = ?"  # noqa: S608 - our own names


# Any: the columns have several types.
def contract_from_rows(rows: Sequence[Any], scope: Scope, contract_id: str) -> Contract:
    """The contract in the rows of FIND, if the scope may see it; raises NotFound."""
    contract = _contract(rows[0]) if rows else None
    # A scope without an agent id matches no contract.
    if contract is None or (scope.only_own and contract.agent_id != scope.agent_id):
        raise NotFound(f"no contract {contract_id!r}")
    return contract


def page(
    connection: Connection,
    scope: Scope,
    *,
    wanted: ContractFilter | None = None,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[Contract]:
    """A page of contracts, newest first; `before` is the `next` of the page before."""
    wanted = wanted or ContractFilter()
    if scope.only_own:
        # A scope without an agent id matches no contract: no recorded agent id is empty.
        own = scope.agent_id or ""
        if wanted.agent_id not in (None, own):
            return ListPage([], None)
        wanted = msgspec.structs.replace(wanted, agent_id=own)
    given = {name: value for name in (*INDEXED, *UNINDEXED) if (value := getattr(wanted, name)) is not None}
    filters = ListFilter(
        indexed={name: value for name, value in given.items() if name in INDEXED},
        dated="awarded_at",
        since=wanted.since,
        until=wanted.until,
        unindexed={name: value for name, value in given.items() if name in UNINDEXED},
    )
    found = read_page(connection, tables.contracts, scope.tenant, filters, before=before, limit=limit)
    return found.convert(contract_from)


_of = tables.contracts.c
SORTS = {
    "agent": SortKey(_of.agent_id, str, _of.seq),
    "consumer": SortKey(_of.consumer_id, str, _of.seq),
    "held": SortKey(
        case((_of.escrow.in_([Escrow.HELD.value, Escrow.FROZEN.value]), _of.hold_micros), else_=0), int, _of.seq
    ),
    "paid": SortKey(case((_of.settlement > 0, _of.total_micros)), int, _of.seq, nullable=True),
    "awarded": SortKey(_of.seq, int, _of.seq),
}
"""What a list of contracts can be sorted by."""


def page_sorted(
    connection: Connection, scope: Scope, order: ListOrder, *, wanted: ContractFilter | None = None, limit: int = 50
) -> SortedPage[Contract]:
    """A page of contracts in one of the orders SORTS."""
    query = visible(scope).where(*fitting(wanted or ContractFilter()))
    return read_sorted(connection, query, SORTS, order, limit).convert(contract_from)


def fitting(wanted: ContractFilter) -> Iterator[ColumnElement[bool]]:
    """The conditions of a filter."""
    for name in (*INDEXED, *UNINDEXED):
        if (value := getattr(wanted, name)) is not None:
            yield _of[name] == value
    if wanted.since is not None:
        yield _of.awarded_at >= to_micros(wanted.since)
    if wanted.until is not None:
        yield _of.awarded_at < to_micros(wanted.until)


def count_by_state(connection: Connection, scope: Scope) -> dict[str, int]:
    """How many contracts there are in each state."""
    state = tables.contracts.c.state
    query = visible(scope).with_only_columns(state, func.count().label("number")).group_by(state)
    return {row.state: row.number for row in connection.execute(query)}


def load_snapshots(connection: Connection, tenant: str, contracts: Sequence[Contract]) -> list[ContractSnapshot]:
    """Contracts with their latest verdicts and live settlements; always two queries."""
    judged = _judgements(connection, tenant, [one.outcome_id for one in contracts if one.outcome_id is not None])
    bills = _bills(connection, tenant, [one.id for one in contracts if one.settlement])
    return [
        ContractSnapshot(
            contract=one, judgement=judged.get(one.outcome_id or ""), bill=bills.get((one.id, one.settlement))
        )
        for one in contracts
    ]


def load_snapshot(connection: Connection, scope: Scope, contract_id: str) -> ContractSnapshot:
    """One contract with its latest verdict and live settlement; raises NotFound."""
    return load_snapshots(connection, scope.tenant, [find(connection, scope, contract_id)])[0]


def load_snapshot_with_history(connection: Connection, scope: Scope, contract_id: str) -> ContractSnapshot:
    """One contract with its history; raises NotFound."""
    found = load_snapshot(connection, scope, contract_id)
    return msgspec.structs.replace(found, history=_history(connection, scope.tenant, contract_id))


def _history(connection: Connection, tenant: str, contract_id: str) -> tuple[ContractTransitionView, ...]:
    table = tables.contract_transitions
    rows = connection.execute(select(table).where(table.c.tenant == tenant, table.c.contract_id == contract_id)).all()
    # Operations of one request have the same time.
    in_order = sorted(rows, key=lambda row: (row.at, OPERATION_ORDER.index(row.operation), row.number))
    return tuple(ContractTransitionView(row.operation, from_micros(row.at), row.actor, row.reason) for row in in_order)


def _judgements(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, ContractJudgement]:
    if not ids:
        return {}
    verdicts, outcomes = tables.verdicts, tables.outcomes
    query = (
        select(verdicts.c.outcome_id, verdicts.c.version, verdicts.c.result)
        .join(
            outcomes,
            (outcomes.c.tenant == verdicts.c.tenant)
            & (outcomes.c.id == verdicts.c.outcome_id)
            & (outcomes.c.version == verdicts.c.version),
        )
        .where(verdicts.c.tenant == tenant, verdicts.c.outcome_id.in_(ids))
    )
    return {
        row.outcome_id: ContractJudgement(row.version, result_from(row.result)) for row in connection.execute(query)
    }


def _bills(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[tuple[str, int], Bill]:
    if not ids:
        return {}
    table = tables.settlements
    rows = connection.execute(select(table).where(table.c.tenant == tenant, table.c.contract_id.in_(ids)))
    try:
        return {(row.contract_id, row.number): Bill.from_json(row.bill) for row in rows}
    except msgspec.DecodeError:
        raise RecordTampered(f"a bill of the contracts {', '.join(ids)} cannot be read") from None


def to_contract_view(standing: ContractSnapshot) -> ContractView:
    """The view for consumers and auditors."""
    contract = standing.contract
    return ContractView(
        id=contract.id,
        seq=contract.seq,
        work_id=contract.work_id,
        agent_id=contract.agent_id,
        consumer_id=contract.consumer_id,
        domain=contract.domain,
        state=contract.state,
        escrow=contract.escrow,
        currency=contract.currency,
        hold=in_units(contract.hold_micros),
        terms=format_terms(terms_of(contract)),
        awarded_at=contract.awarded_at,
        expires_at=contract.expires_at,
        started_at=contract.started_at,
        completed_at=contract.completed_at,
        settled_at=contract.settled_at,
        hold_reason=contract.hold_reason,
        outcome=_to_judgement_view(standing),
        settlement=None
        if standing.bill is None
        else to_settlement_view(standing.bill, contract.settlement, contract.version),
        provider_id=contract.provider_id,
        history=None if standing.history is None else [*standing.history],
        on_hold=standing.on_hold,
        input_read_at=contract.input_read_at,
        latency_basis=latency_basis_of(contract),
    )


def to_agent_contract(standing: ContractSnapshot) -> AgentContract:
    """The view for the agent."""
    contract, bill = standing.contract, standing.bill
    result = None if standing.judgement is None else standing.judgement.result
    return AgentContract(
        id=contract.id,
        work_id=contract.work_id,
        agent_id=contract.agent_id,
        state=contract.state,
        currency=contract.currency,
        cpc_rate=in_units(as_micros(terms_of(contract).cpc_rate or 0)),
        awarded_at=contract.awarded_at,
        expires_at=contract.expires_at,
        completed_at=contract.completed_at,
        settled_at=contract.settled_at,
        outcome_id=contract.outcome_id,
        verdict=None if result is None else result.verdict,
        success=None if result is None else result.success,
        score=None if result is None else show_score(result.score, score_to_show(contract.escrow, terms_of(contract))),
        total=None if bill is None else in_units(bill.total),
        fee=None if bill is None else in_units(bill.fee),
        payout=None if bill is None else in_units(bill.payout),
        started_at=contract.started_at,
        input_read_at=contract.input_read_at,
        latency_basis=latency_basis_of(contract),
    )


def score_to_show(escrow: Escrow, terms: Terms) -> AgentScore:
    """What an agent sees of the score of a contract: all of it once it is paid, before that as the terms say."""
    return AgentScore.EXACT if escrow is Escrow.PAID else terms.agent_score


def scores_to_show(connection: Connection, tenant: str, contract_ids: Collection[str]) -> dict[str, AgentScore]:
    """What agents see of the scores of these contracts."""
    table = tables.contracts.c
    query = select(table.id, table.escrow, table.terms).where(table.tenant == tenant, table.id.in_(contract_ids))
    rows = connection.execute(query) if contract_ids else ()
    return {row.id: score_to_show(Escrow(row.escrow), parse_terms(bytes(row.terms))) for row in rows}


def latency_basis_of(contract: Contract) -> LatencyBasis:
    """From when the agent's time counts on a contract."""
    return find_latency_basis(times_of(contract), terms_of(contract).latency_from)


def _to_judgement_view(standing: ContractSnapshot) -> JudgementView | None:
    judgement, outcome_id = standing.judgement, standing.contract.outcome_id
    if judgement is None or outcome_id is None:
        return None
    result = judgement.result
    if result is None:
        return JudgementView(
            outcome_id=outcome_id,
            version=judgement.version,
            verdict=None,
            success=None,
            score=None,
            governance=None,
            governance_flags=[],
        )
    return JudgementView(
        outcome_id=outcome_id,
        version=judgement.version,
        verdict=result.verdict,
        success=result.success,
        score=result.score,
        governance=result.governance,
        governance_flags=result.governance_flags,
    )


def to_settlement_view(bill: Bill, number: int, version: int) -> SettlementView:
    """The view of a bill."""
    base, bonus, penalty = map(in_units, (bill.base, bill.bonus, bill.penalty))
    tokens = {"tokens": in_units(bill.tokens)} if bill.usage else {}
    adjustment = {"adjustment": in_units(bill.adjustment)} if is_adjusted(bill) else {}
    return SettlementView(
        number=number,
        version=version,
        base=base,
        bonus=bonus,
        penalty=penalty,
        total=in_units(bill.total),
        fee=in_units(bill.fee),
        payout=in_units(bill.payout),
        released=in_units(bill.released),
        breakdown={"cpc": base, "cpa_bonus": bonus, "cpa_penalty": penalty, **tokens, **adjustment},
        lines=[
            LineView(
                rule=line.rule,
                part=str(line.part),
                amount=in_units(line.micros),
                reason=line.reason,
                criterion_id=line.criterion_id,
            )
            for line in bill.lines
        ],
    )


def encode(view: Record) -> bytes:
    """A view as JSON."""
    return msgspec.json.encode(view, order="deterministic")
