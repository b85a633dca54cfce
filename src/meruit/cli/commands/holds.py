"""`meruit holds`: contracts that wait for an operator before they are paid."""

import click

from meruit.cli.commands.contract import contract_argument, reason_option
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
    """List held contracts; release or void them.

    A contract is held if governance finds it implausible, if money depends on something that could not be measured, or
    if its payment was reversed.
    """


@holds.command(name="list")
@page_options
@tenant_option
@store_options
@json_option
def list_holds(
    *, limit: int, before: int | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """List held contracts with the reason, newest first."""
    # Imported here, and below, so that --help is quick.
    from meruit.cli.shared.contracts import page_of, print_holds
    from meruit.contracts.records import ContractFilter, ContractFilterValue
    from meruit.model.contract import ContractState

    held = ContractFilterValue(ContractFilter.STATE, ContractState.VERIFICATION_PENDING)
    print_holds(page_of(StoreAddress(data, database_url, tenant), held, before, limit), limit, as_json=as_json)
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
        StoreAddress(data, database_url, tenant),
        lambda request, store: ReleaseContract(request, contract_id, reason, new_salt(store.surroundings.entropy)),
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

    return void_contract(StoreAddress(data, database_url, tenant), contract_id, reason, as_json=as_json)
