"""Work of the contract commands: the actor, the marketplace, transitions, and printing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from meruit.app import build_marketplace, open_store
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, StoreAddress, escape_control_characters, note, print_json, print_table
from meruit.cli.views.contract import amount, print_contract_state
from meruit.config import Settings, location_of
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.records import Actor, ContractFilterValue, ContractRequest, ContractSnapshot, load_snapshots, page
from meruit.contracts.records import to_contract_view as view
from meruit.contracts.transitions import VoidContract
from meruit.errors import MeruitError
from meruit.model.access import Scope
from meruit.model.outcome import MAX_LABEL
from meruit.outcomes.service import Registrar
from meruit.store.keys import TENANT
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
    return run_transition(place, lambda request, _: VoidContract(request, contract_id, reason), as_json=as_json)


# Any: the file is not validated yet.
def parse_claims(file: str, claimed: Mapping[str, Any]) -> dict[str, float]:
    """Read the metrics that an agent claims, each a number; raises UsageError."""
    for name, value in claimed.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise click.UsageError(
                f"{file}: {escape_control_characters(name[:MAX_LABEL])} must be a number, such as 0.9"
            )
    return dict(claimed)


def page_of(
    place: StoreAddress, wanted: ContractFilterValue | None, before: int | None, limit: int
) -> list[ContractSnapshot]:
    """Contracts with their verdicts and bills, newest first."""
    with open_records(place.data, place.database_url) as store, store.database.reading() as connection:
        found = page(connection, Scope(place.tenant), wanted=wanted, before=before, limit=limit)
        return load_snapshots(connection, place.tenant, found)


def print_page(found: Sequence[ContractSnapshot], limit: int, *, as_json: bool) -> None:
    """Print a list of contracts."""
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
        for one in found
    ]
    _print_contract_page(found, limit, (headings, rows), as_json=as_json)


def print_holds(found: Sequence[ContractSnapshot], limit: int, *, as_json: bool) -> None:
    """Print a list of held contracts."""
    headings = ("contract", "completed (UTC)", "agent", "held", "why")
    rows = [
        (
            one.contract.id,
            "–" if one.contract.completed_at is None else one.contract.completed_at.strftime("%Y-%m-%d %H:%M:%S"),
            one.contract.agent_id,
            amount(one.contract.hold_micros, one.contract.currency),
            one.contract.hold_reason,
        )
        for one in found
    ]
    _print_contract_page(found, limit, (headings, rows), as_json=as_json)


def _print_contract_page(
    found: Sequence[ContractSnapshot],
    limit: int,
    shown: tuple[Sequence[str], Sequence[Sequence[str]]],
    *,
    as_json: bool,
) -> None:
    following = found[-1].contract.seq if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({"contracts": [view(one) for one in found], "next": following}))
        return
    print_table(*shown)
    if following is not None:
        note(f"next page: --before {following}")
