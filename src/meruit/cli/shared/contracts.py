"""Work of the contract commands: the actor, the marketplace, transitions, and printing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from sqlalchemy import Connection

from meruit.app import build_marketplace, open_store
from meruit.cli.shared.list_options import ListRequest, write_table
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, StoreAddress, escape_control_characters, note, print_json, print_table
from meruit.cli.views.contract import amount, describe_money, print_contract_state, print_hold_evidence
from meruit.config import Settings, location_of
from meruit.contracts.list_csv import CONTRACT_HEADINGS, HOLD_HEADINGS, contract_rows, hold_rows
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.records import (
    Actor,
    ContractFilter,
    ContractRequest,
    ContractSnapshot,
    HoldKind,
    load_snapshots,
    page,
    page_holds,
    titles_of,
)
from meruit.contracts.records import to_contract_view as view
from meruit.contracts.transitions import VoidContract
from meruit.documents.csv_table import Cell
from meruit.errors import MeruitError
from meruit.model.access import TENANT, Scope
from meruit.model.outcome import MAX_LABEL
from meruit.outcomes.service import Registrar
from meruit.store.paging import ListPage, fill_page, iterate_pages
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

COMMAND_LINE = "command line"
"""Actor of the command line in the records."""

TransitionWrite = Write[ContractSnapshot]


def command_line_actor(tenant: str, by: str | None = None) -> Actor:
    """The actor of the command line, or the person that it names; raises MeruitError for a bad tenant name."""
    if not TENANT.fullmatch(tenant):
        raise MeruitError(f"{tenant!r} is not a valid tenant: use a-z, 0-9, - and _, at most 63 characters")
    return Actor(Scope(tenant), COMMAND_LINE if by is None else check_line("--by", by))


def check_line(option: str, text: str) -> str:
    """Check a reason or an id; raises UsageError if it is empty, too long or not printable."""
    if not (text.strip() and text.isprintable() and len(text) <= MAX_LABEL):
        raise click.UsageError(f"{option} must be one line of 1 to {MAX_LABEL} printable characters")
    return text


@contextmanager
def open_marketplace(
    place: StoreAddress, settings: Settings, engine: VerificationEngine, *, make: bool = False
) -> Iterator[Marketplace]:
    """Open the marketplace over the store for a while."""
    store = open_store(location_of(place.data, place.database_url), make=make)
    try:
        registrar = Registrar(engine, store, max_criteria=settings.verification.max_criteria_per_task)
        yield build_marketplace(settings, registrar)
    finally:
        store.close()


def write_transition(store: Store, move: TransitionWrite) -> ContractSnapshot:
    """Apply a transition and return the contract; raises WrongState and NotFound."""
    return store.recorder.write(move)


def run_transition(
    place: StoreAddress,
    move: Callable[[ContractRequest, Store], TransitionWrite],
    *,
    as_json: bool,
    by: str | None = None,
) -> int:
    """Apply one transition and print the contract; `by` is the person who asks for it."""
    request = ContractRequest(command_line_actor(place.tenant, by))
    with open_records(place.data, place.database_url) as store:
        snapshot = write_transition(store, move(request, store))
    print_contract(snapshot, as_json=as_json)
    return ExitCode.PASSED


def print_contract(snapshot: ContractSnapshot, *, as_json: bool, verdict: bool = False) -> None:
    """Print a contract; as JSON, with the whole result."""
    if not as_json:
        print_contract_state(snapshot, verdict=verdict)
        return
    result = None if snapshot.judgement is None else snapshot.judgement.result
    print_json(msgspec.json.encode(msgspec.structs.asdict(view(snapshot)) | {"verification": result}))


def void_contract(place: StoreAddress, contract_id: str, reason: str, *, as_json: bool) -> int:
    """Void a contract and print it."""
    check_line("--reason", reason)
    return run_transition(
        place, lambda request, _: VoidContract(request=request, contract_id=contract_id, reason=reason), as_json=as_json
    )


# Any: the file is not validated yet.
def parse_claims(file: str, claimed: Mapping[str, Any]) -> dict[str, float]:
    """Read the metrics that an agent claims, each a number; raises UsageError."""
    for name, value in claimed.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise click.UsageError(
                f"{file}: {escape_control_characters(name[:MAX_LABEL])} must be a number, such as 0.9"
            )
    return dict(claimed)


def list_contracts(place: StoreAddress, wanted: ContractFilter, asked: ListRequest) -> None:
    """Print contracts with their verdicts and bills, newest first."""

    def read(connection: Connection, before: int | None, limit: int) -> ListPage[ContractSnapshot]:
        found, following = page(connection, Scope(place.tenant), wanted=wanted, before=before, limit=limit)
        return ListPage(load_snapshots(connection, place.tenant, found), following)

    _print_list(place, asked, read, _print_contracts, (CONTRACT_HEADINGS, contract_rows))


def list_holds(place: StoreAddress, wanted: ContractFilter, kind: HoldKind | None, asked: ListRequest) -> None:
    """Print held and disputed contracts, newest first."""

    def read(connection: Connection, before: int | None, limit: int) -> ListPage[ContractSnapshot]:
        return page_holds(connection, Scope(place.tenant), kind=kind, wanted=wanted, before=before, limit=limit)

    _print_list(place, asked, read, _print_holds, (HOLD_HEADINGS, hold_rows))


def _print_list(
    place: StoreAddress,
    asked: ListRequest,
    read: Callable[[Connection, int | None, int], ListPage[ContractSnapshot]],
    show: Callable[[ListPage[ContractSnapshot], bool], None],
    table: tuple[Sequence[str], Callable[[Iterable[ContractSnapshot], Mapping[str, str]], Iterable[Sequence[Cell]]]],
) -> None:
    """Print a page of contracts as text, JSON, CSV or XLSX; a file without a limit has all of them."""
    headings, rows = table
    titles: dict[str, str] = {}
    with open_records(place.data, place.database_url) as store, store.database.reading() as connection:

        def entitle(found: Iterable[list[ContractSnapshot]]) -> Iterator[ContractSnapshot]:
            for several in found:
                titles.clear()
                titles.update(titles_of(connection, place.tenant, {one.contract.work_id for one in several}))
                yield from several

        if asked.table is not None and asked.everything:
            pages = iterate_pages(lambda before, limit: read(connection, before, limit), asked.before)
            write_table(asked.table, headings, rows(entitle(pages), titles))
            return
        found = fill_page(lambda before, limit: read(connection, before, limit), asked.before, asked.limit)
        if asked.table is not None:
            write_table(asked.table, headings, rows(entitle([found.entries]), titles))
            return
    show(found, asked.as_json)


def _print_contracts(found: ListPage[ContractSnapshot], as_json: bool) -> None:  # noqa: FBT001 - the one choice
    headings = ("contract", "awarded (UTC)", "agent", "consumer", "state", "verdict", "paid")
    rows = [
        (
            one.contract.id,
            one.contract.awarded_at.strftime("%Y-%m-%d %H:%M:%S"),
            one.contract.agent_id,
            one.contract.consumer_id,
            str(one.contract.state).replace("_", " "),
            "–" if one.judgement is None or one.judgement.result is None else str(one.judgement.result.verdict),
            "–" if one.bill is None else amount(one.bill.total, one.bill.currency),
        )
        for one in found.entries
    ]
    _print_contract_page(found, (headings, rows), as_json=as_json)


def _print_holds(found: ListPage[ContractSnapshot], as_json: bool) -> None:  # noqa: FBT001 - the one choice
    headings = ("contract", "state", "since (UTC)", "by", "agent", "amount", "why")
    rows = [
        (
            one.contract.id,
            str(hold.kind),
            hold.since.strftime("%Y-%m-%d %H:%M:%S"),
            hold.by or "–",
            one.contract.agent_id,
            describe_money(one.contract),
            hold.reason,
        )
        for one in found.entries
        if (hold := one.on_hold) is not None
    ]
    _print_contract_page(found, (headings, rows), as_json=as_json)


def print_hold(found: ContractSnapshot, *, as_json: bool) -> None:
    """Print why a contract waits, with the evidence."""
    if as_json:
        print_json(view(found).to_json())
        return
    print_hold_evidence(found)


def _print_contract_page(
    found: ListPage[ContractSnapshot],
    shown: tuple[Sequence[str], Sequence[Sequence[str]]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(msgspec.json.encode({"contracts": [view(one) for one in found.entries], "next": found.next}))
        return
    print_table(*shown)
    if found.next is not None:
        note(f"next page: --before {found.next}")
