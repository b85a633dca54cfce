"""`meruit holds`: contracts that wait for an operator before they are paid."""

from typing import Any

import click

from meruit.cli.commands.contract import contract_argument, party_options, reason_option
from meruit.cli.shared.list_options import TableTarget, check_span, list_request, table_options
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    json_option,
    page_options,
    store_options,
    tenant_option,
)


@click.group()
def holds() -> None:
    """List held and disputed contracts; release or void held ones.

    A contract is held if governance finds it implausible, if money depends on something that could not be measured, or
    if its payment was reversed. A dispute ends with `meruit contract resolve`.
    """


@holds.command(name="list")
@click.option("--state", type=click.Choice(("held", "disputed")), help="Filter by what they wait for.")
@party_options
@page_options
@table_options
@tenant_option
@store_options
@json_option
def list_holds(  # noqa: PLR0913 - one an option
    *,
    state: str | None,
    limit: int,
    before: int | None,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """List held and disputed contracts, newest first.

    Each has the time since when it waits, the person who stopped it, and the reason. Several filters must all hold;
    --since and --until are about the award. --csv and --xlsx write every one that fits unless --limit is given.
    """
    # Imported here, and below, so that --help is quick.
    from meruit.cli.shared.contracts import list_holds as print_holds
    from meruit.contracts.records import ContractFilter, HoldKind

    check_span(chosen["since"], chosen["until"])
    kind = None if state is None else HoldKind(state)
    asked = list_request(before, limit, table, as_json=as_json)
    print_holds(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), ContractFilter(**chosen), kind, asked
    )
    return ExitCode.PASSED


@holds.command()
@contract_argument
@tenant_option
@store_options
@json_option
def show(*, contract_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show why a contract waits: every reason, with its evidence."""
    from meruit.cli.shared.contracts import print_hold
    from meruit.contracts.records import load_hold
    from meruit.model.access import Scope

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = load_hold(connection, Scope(tenant), contract_id, store.blobs)
    print_hold(found, as_json=as_json)
    return ExitCode.PASSED


@holds.command()
@contract_argument
@reason_option
@tenant_option
@store_options
@json_option
def release(
    *, contract_id: str, reason: str, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Release a held contract: pay it by its verdict."""
    from meruit.cli.shared.contracts import check_line, run_transition
    from meruit.contracts.records import new_salt
    from meruit.contracts.transitions import ReleaseContract

    check_line("--reason", reason)
    return run_transition(
        StoreAddress(data=data, database_url=database_url, tenant=tenant),
        lambda request, store: ReleaseContract(
            request=request, contract_id=contract_id, reason=reason, salt=new_salt(store.surroundings.entropy)
        ),
        as_json=as_json,
    )


@holds.command()
@contract_argument
@reason_option
@tenant_option
@store_options
@json_option
def void(
    *, contract_id: str, reason: str, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Void a held contract; the escrow goes back to the consumer."""
    from meruit.cli.shared.contracts import void_contract

    return void_contract(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), contract_id, reason, as_json=as_json
    )
