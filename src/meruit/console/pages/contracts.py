"""Contracts: the list by state, one with its bill and history, and what an operator can decide."""

from functools import partial
from typing import Any

from sqlalchemy import Connection

from meruit.api.file_stream import stream_table
from meruit.console.contract_words import PARTY_FIELDS, describe_contract, filter_of
from meruit.console.live import Live
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.query import Choice, Filter, Query
from meruit.console.table import Column, Table, read_once
from meruit.contracts import records as contracts
from meruit.contracts.list_csv import (
    AGENT_CONTRACT_HEADINGS,
    CONTRACT_HEADINGS,
    HOLD_HEADINGS,
    agent_contract_cells,
    contract_rows,
    hold_rows,
)
from meruit.contracts.records import ContractFilter, ContractSnapshot, HoldKind
from meruit.model.access import Role
from meruit.model.contract import ContractState
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 30
BOARD, BOARD_CARDS = "board", 6
"""The board shows so many contracts of each state: the newest."""
COLUMNS = (
    Column("work", "Work"),
    Column("state", "State"),
    Column("verdict", "Verdict"),
    Column("agent", "Agent", sortable=True),
    Column("consumer", "Consumer", minor=True, sortable=True),
    Column("held", "In escrow", numeric=True, sortable=True, hint="What is held until the contract is settled or void"),
    Column("paid", "Paid", numeric=True, sortable=True),
    Column("awarded", "Awarded", numeric=True, minor=True, sortable=True),
    Column("id", "Contract", usual=False),
)
AGENT_COLUMNS = tuple(one for one in COLUMNS if one.key not in ("consumer", "held"))
HOLD_COLUMNS = (
    Column("work", "Work"),
    Column("kind", "Waits for", hint="A hold waits for a release or a void; a dispute for a decision"),
    Column("reason", "Why", wide=True),
    Column("agent", "Agent", sortable=True),
    Column("consumer", "Consumer", minor=True, sortable=True),
    Column("held", "In escrow", numeric=True, sortable=True),
    Column("paid", "Paid", numeric=True, usual=False),
    Column("since", "Since", numeric=True, sortable=True),
    Column("id", "Contract", usual=False),
)


@page("/contracts", roles=ANYONE, nav=NavEntry("Money", "Contracts", keys="k", order=10))
async def list_contracts(request: PageRequest) -> Response[Any]:
    """List contracts, newest first, with their number in each state."""
    query = Query.of(request)
    scope, is_agent = request.caller.scope, request.caller.role is Role.AGENT
    state = query.get("state") if query.get("state") in [*ContractState] else None
    wanted = ContractFilter(state=state) if is_agent else filter_of(query, state)
    if query.get("view") == BOARD and not is_agent:
        return await _show_board(request, query)
    table = Table.of(query, "Contracts, newest first", AGENT_COLUMNS if is_agent else COLUMNS)
    titles: dict[str, str] = {}

    def read(connection: Connection, at: Table) -> tuple[list[ContractSnapshot], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = contracts.page_sorted(connection, scope, at.order, wanted=wanted, limit=limit)
            entries, turned = ordered.entries, at.following(ordered)
        else:
            before = at.query.number("before")
            newest = contracts.page(connection, scope, wanted=wanted, before=before, limit=limit)
            entries, turned = newest.entries, at.before(newest.next)
        titles.update(contracts.titles_of(connection, scope.tenant, {one.work_id for one in entries} - {*titles}))
        return contracts.load_snapshots(connection, scope.tenant, entries), turned

    if table.file is not None:
        every = table.read_all(partial(read_once, request.service.store, read))
        if is_agent:
            own = map(agent_contract_cells, map(contracts.to_agent_contract, every))
            return await stream_table(request, table.file, AGENT_CONTRACT_HEADINGS, lambda: own)
        return await stream_table(request, table.file, CONTRACT_HEADINGS, lambda: contract_rows(every, titles))
    (found, following), counts = await request.service.read(
        lambda connection: (read(connection, table), contracts.count_by_state(connection, scope))
    )
    states = [Choice(str(state), str(state).replace("_", " "), counts.get(state, 0)) for state in ContractState]
    total = sum(counts.values())
    return request.show(
        "contracts.html",
        live=None if is_agent else Live(),
        table=table,
        filters=[Filter("state", "State", [one for one in states if one.count])],
        query=query,
        contracts=found,
        titles=titles,
        total=total,
        waiting=counts.get(ContractState.VERIFICATION_PENDING, 0) + counts.get(ContractState.DISPUTED, 0),
        next=following,
        parties=() if is_agent else PARTY_FIELDS,
    )


async def _show_board(request: PageRequest, query: Query) -> Response[Any]:
    """Show the newest contracts of each state side by side."""
    scope = request.caller.scope

    def ask(connection: Connection) -> tuple[dict[str, list[ContractSnapshot]], dict[str, str], dict[str, int]]:
        counts = contracts.count_by_state(connection, scope)
        columns: dict[str, list[ContractSnapshot]] = {}
        for state in (one for one in ContractState if counts.get(one)):
            found = contracts.page(connection, scope, wanted=filter_of(query, state), limit=BOARD_CARDS)
            columns[state] = contracts.load_snapshots(connection, scope.tenant, found.entries)
        works = {one.contract.work_id for several in columns.values() for one in several}
        return columns, contracts.titles_of(connection, scope.tenant, works), counts

    columns, titles, counts = await request.service.read(ask)
    return request.show(
        "contracts-board.html",
        live=Live(),
        query=query,
        columns=columns,
        counts=counts,
        titles=titles,
        total=sum(counts.values()),
        waiting=counts.get(ContractState.VERIFICATION_PENDING, 0) + counts.get(ContractState.DISPUTED, 0),
        parties=PARTY_FIELDS,
    )


@page("/holds", nav=NavEntry("Money", "Holds", keys="w", order=20))
async def list_holds(request: PageRequest) -> Response[Any]:
    """List contracts that wait for a person, newest first."""
    query = Query.of(request)
    scope = request.caller.scope
    kind = HoldKind(query.get("state")) if query.get("state") in [*HoldKind] else None
    wanted = filter_of(query)
    table = Table.of(query, "Contracts that wait for a person, newest first", HOLD_COLUMNS)
    titles: dict[str, str] = {}

    def read(connection: Connection, at: Table) -> tuple[list[ContractSnapshot], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = contracts.page_holds_sorted(connection, scope, at.order, kind=kind, wanted=wanted, limit=limit)
            entries, turned = ordered.entries, at.following(ordered)
        else:
            before = at.query.number("before")
            newest = contracts.page_holds(connection, scope, kind=kind, wanted=wanted, before=before, limit=limit)
            entries, turned = newest.entries, at.before(newest.next)
        works = {one.contract.work_id for one in entries}
        titles.update(contracts.titles_of(connection, scope.tenant, works - {*titles}))
        return entries, turned

    if table.file is not None:
        every = table.read_all(partial(read_once, request.service.store, read))
        return await stream_table(request, table.file, HOLD_HEADINGS, lambda: hold_rows(every, titles))
    (found, following), counts = await request.service.read(
        lambda connection: (read(connection, table), contracts.count_by_state(connection, scope))
    )
    held, disputed = (counts.get(state, 0) for state in (ContractState.VERIFICATION_PENDING, ContractState.DISPUTED))
    choices = [Choice("held", "held", held), Choice("disputed", "disputed", disputed)]
    return request.show(
        "holds.html",
        live=Live(),
        table=table,
        filters=[Filter("state", "Waits for", choices)],
        query=query,
        contracts=found,
        titles=titles,
        held=held,
        disputed=disputed,
        next=following,
    )


@page("/contracts/{contract_id:str}", roles=ANYONE)
async def show_contract(request: PageRequest, contract_id: FromPath[str]) -> Response[Any]:
    """Show a contract: what is owed, what is in the way, what there is to decide."""
    scope, store = request.caller.scope, request.service.store
    if request.caller.role is Role.AGENT:

        def ask_own(connection: Connection) -> tuple[ContractSnapshot, dict[str, str]]:
            found = contracts.load_snapshot(connection, scope, contract_id)
            return found, contracts.titles_of(connection, scope.tenant, {found.contract.work_id})

        own, titles = await request.service.read(ask_own)
        return request.show(
            "contract-own.html", contract=contracts.to_agent_contract(own), title=titles.get(own.contract.work_id, "")
        )

    def ask(connection: Connection) -> dict[str, Any]:
        found = contracts.load_snapshot_in_full(connection, scope, contract_id)
        if found.on_hold is not None:
            found = contracts.load_hold(connection, scope, contract_id, store.blobs)
        return {
            "found": found,
            "work": contracts.find_work(connection, scope.tenant, found.contract.work_id),
            "postings": contracts.postings_of(connection, scope.tenant, contract_id),
        }

    values = await request.service.read(ask)
    found: ContractSnapshot = values["found"]
    return request.show(
        "contract.html",
        live=Live(subject=contract_id),
        view=contracts.to_contract_view(found),
        words=describe_contract(found, request.now),
        **values,
    )
