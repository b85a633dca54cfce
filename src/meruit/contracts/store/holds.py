"""Read the contracts that wait for a person, held and disputed ones alike, with the evidence of each."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, and_, func, or_, select

from meruit.contracts.hold_evidence import HoldFacts, HoldKind, HoldView, explain_dispute, explain_reason
from meruit.contracts.logged import differing_fields, read_logged_contract
from meruit.contracts.payment_decision import Hold, PaymentFacts, decide_payment, deciding_judges
from meruit.contracts.store import work as works
from meruit.contracts.store.read import (
    SORTS,
    ContractFilter,
    ContractSnapshot,
    contract_from,
    fitting,
    load_snapshot_with_history,
    load_snapshots,
    page,
    terms_of,
    visible,
)
from meruit.contracts.store.transaction import BY_USAGE
from meruit.contracts.token_terms import token_use
from meruit.errors import WrongState
from meruit.governance.records import find_paid_contract_now
from meruit.judges.records import select_calibrations, standings_of
from meruit.log.entries import NO_CRITERIA, read_entry
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState, Terms
from meruit.model.governance import GovernanceCheck
from meruit.model.money import JudgeStanding
from meruit.model.time import from_micros
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import criteria_from
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.database import MAX_PAGE
from meruit.store.paging import ListPage, merge_pages
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted
from meruit.usage.records import find_by_contract

WAITING = {
    ContractState.VERIFICATION_PENDING: HoldKind.HELD,
    ContractState.DISPUTED: HoldKind.DISPUTED,
}
"""The states in which a contract waits for a person."""


def page_holds(
    connection: Connection,
    scope: Scope,
    *,
    kind: HoldKind | None = None,
    wanted: ContractFilter | None = None,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[ContractSnapshot]:
    """A page of held and disputed contracts, newest first; `before` is the `next` of the page before."""
    every = wanted or ContractFilter()
    states = [state for state, one in WAITING.items() if kind in (None, one) and every.state in (None, state)]
    pages = [
        page(connection, scope, wanted=msgspec.structs.replace(every, state=state), before=before, limit=limit)
        for state in states
    ]
    found = merge_pages(pages, min(limit, MAX_PAGE), lambda contract: contract.seq)
    snapshots = load_snapshots(connection, scope.tenant, found.entries)
    return ListPage(add_holds(connection, scope.tenant, snapshots), found.next)


_contracts, _stops = tables.contracts.c, tables.contract_transitions.c
_STOP = or_(
    and_(
        _contracts.state == ContractState.DISPUTED.value,
        _stops.operation == "dispute",
        _stops.number == _contracts.disputes,
    ),
    and_(
        _contracts.state == ContractState.VERIFICATION_PENDING.value,
        _stops.operation == "reverse",
        _stops.number == _contracts.settlements,
    ),
)
"""What stopped a contract, as `add_holds` finds it; at most one transition."""
HOLD_SORTS = {
    **SORTS,
    "since": SortKey(func.coalesce(_stops.at, _contracts.completed_at, _contracts.awarded_at), int, _contracts.seq),
}
"""What a list of holds can be sorted by."""


def page_holds_sorted(
    connection: Connection,
    scope: Scope,
    order: ListOrder,
    *,
    kind: HoldKind | None = None,
    wanted: ContractFilter | None = None,
    limit: int = 50,
) -> SortedPage[ContractSnapshot]:
    """A page of held and disputed contracts in one of the orders HOLD_SORTS."""
    states = [state.value for state, one in WAITING.items() if kind in (None, one)]
    stop = and_(_stops.tenant == _contracts.tenant, _stops.contract_id == _contracts.id, _STOP)
    query = (
        visible(scope)
        .outerjoin(tables.contract_transitions, stop)
        .where(_contracts.state.in_(states), *fitting(wanted or ContractFilter()))
    )
    found = read_sorted(connection, query, HOLD_SORTS, order, limit).convert(contract_from)
    snapshots = load_snapshots(connection, scope.tenant, found.entries)
    return SortedPage(add_holds(connection, scope.tenant, snapshots), found.next)


def add_holds(connection: Connection, tenant: str, snapshots: Sequence[ContractSnapshot]) -> list[ContractSnapshot]:
    """The contracts, those that wait with who stopped them, when and why; one query."""
    ids = [one.contract.id for one in snapshots if one.contract.state in WAITING]
    table = tables.contract_transitions
    query = select(table).where(
        table.c.tenant == tenant, table.c.contract_id.in_(ids), table.c.operation.in_(("dispute", "reverse"))
    )
    stops = {(row.contract_id, row.operation, row.number): row for row in connection.execute(query)} if ids else {}

    def find_hold(contract: Contract) -> HoldView | None:
        kind = WAITING.get(contract.state)
        if kind is None:
            return None
        if kind is HoldKind.DISPUTED:
            stop = stops[contract.id, "dispute", contract.disputes]
            return HoldView(kind, stop.reason, stop.actor, from_micros(stop.at))
        reversal = stops.get((contract.id, "reverse", contract.settlements))
        if reversal is None:
            # A contract that is held without a reversal has waited since its output was judged.
            return HoldView(kind, contract.hold_reason, None, contract.completed_at or contract.awarded_at)
        by = None if reversal.fingerprint == BY_USAGE else reversal.actor
        return HoldView(kind, contract.hold_reason, by, from_micros(reversal.at))

    return [msgspec.structs.replace(one, on_hold=find_hold(one.contract)) for one in snapshots]


def load_snapshot_in_full(connection: Connection, scope: Scope, contract_id: str) -> ContractSnapshot:
    """One contract with its history and, where it waits, who stopped it; raises NotFound."""
    return add_holds(connection, scope.tenant, [load_snapshot_with_history(connection, scope, contract_id)])[0]


def load_hold(connection: Connection, scope: Scope, contract_id: str, shelf: BlobStore) -> ContractSnapshot:
    """One contract that waits, with every reason and its evidence; raises NotFound, WrongState where none stops it."""
    found = load_snapshot_in_full(connection, scope, contract_id)
    hold, contract = found.on_hold, found.contract
    if hold is None:
        raise WrongState("not_on_hold", f"contract {contract.id} is {contract.state}; it is neither held nor disputed")
    work = works.find(connection, scope.tenant, contract.work_id)
    payment = _load_payment_facts(connection, scope.tenant, found, work)
    facts = HoldFacts(
        contract=contract,
        result=payment.result,
        check=_load_check(connection, scope.tenant, contract),
        usage=payment.usage,
        judges=payment.judges,
        terms=payment.terms,
        # A changed input explains nothing; that it was changed is the reason to show.
        work_input={} if payment.tampered else works.input_of(connection, scope.tenant, work, shelf),
        canaries=work.submission.canaries,
    )
    reasons = [explain_dispute(hold, contract)] if hold.kind is HoldKind.DISPUTED else []
    decision = decide_payment(payment)
    if isinstance(decision, Hold) and contract.settlement == 0:
        reasons += [one for reason in decision.reasons for one in explain_reason(reason, facts)]
    return msgspec.structs.replace(found, on_hold=msgspec.structs.replace(hold, reasons=reasons))


def _load_payment_facts(
    connection: Connection, tenant: str, found: ContractSnapshot, work: works.WorkRow
) -> PaymentFacts:
    """What decides whether the contract may be paid, as it is recorded now."""
    contract, judgement, terms = found.contract, found.judgement, terms_of(found.contract)
    used = find_by_contract(connection, tenant, contract.id) if terms.prices_tokens else ()
    version = 0 if judgement is None else judgement.version
    return PaymentFacts(
        terms=terms,
        escrow_micros=contract.hold_micros,
        result=None if judgement is None else judgement.result,
        version=version,
        criteria=None if work.criteria is None else criteria_from(work.criteria),
        criteria_digest=work.criteria_digest or NO_CRITERIA,
        usage=tuple(map(token_use, used)),
        judges=_load_judges(connection, tenant, terms, None if judgement is None else judgement.result),
        paid_under=find_paid_contract_now(connection, tenant, contract, contract.evidence),
        has_run=contract.evidence is not None,
        settled_version=contract.version,
        reversed_by_usage=version <= contract.version and _is_reversed_by_usage(connection, tenant, contract),
        tampered=_find_tampering(connection, tenant, contract, work),
    )


def _find_tampering(connection: Connection, tenant: str, contract: Contract, work: works.WorkRow) -> str | None:
    """How the row of a contract differs from its entries, and its input; the rest is compared when it is paid."""
    leaves = tables.log_leaves
    query = select(leaves.c.body).where(leaves.c.tenant == tenant, leaves.c.contract_id == contract.id)
    bodies = connection.execute(query.order_by(leaves.c.contract_seq)).scalars()
    differ = [*differing_fields(contract, read_logged_contract(read_entry(bytes(body)) for body in bodies))]
    differ += [] if work.has_agreed_input else ["input"]
    return f"not what the audit log commits to: {', '.join(differ)}" if differ else None


def _load_judges(
    connection: Connection, tenant: str, terms: Terms, result: VerificationResult | None
) -> tuple[JudgeStanding, ...]:
    if result is None or terms.labels_asked_for is None:
        return ()
    judges = deciding_judges(result)
    query = select_calibrations(tenant, [version for _, version in judges.values()])
    return standings_of(connection.execute(query).all(), judges.values())


def _is_reversed_by_usage(connection: Connection, tenant: str, contract: Contract) -> bool:
    table = tables.contract_transitions
    query = select(table.c.fingerprint).where(
        table.c.tenant == tenant,
        table.c.contract_id == contract.id,
        table.c.operation == "reverse",
        table.c.number == contract.settlements,
    )
    return connection.execute(query).scalar() == BY_USAGE


def _load_check(connection: Connection, tenant: str, contract: Contract) -> GovernanceCheck | None:
    table = tables.governance_checks
    query = select(table.c.body).where(
        table.c.tenant == tenant, table.c.outcome_id == contract.outcome_id, table.c.body.is_not(None)
    )
    body = connection.execute(query.order_by(table.c.version.desc()).limit(1)).scalar()
    return None if body is None else GovernanceCheck.from_json(body)
