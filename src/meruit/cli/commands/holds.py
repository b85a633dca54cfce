"""`meruit holds`: what waits for a person before it is paid."""

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
    """See what is held, and let it be paid or call it off; each takes --json.

    Governance holds what it does not believe; so is held what could not be measured while money depends on it, and what
    was taken back.
    """


@holds.command(name="list")
@page_options
@tenant_option
@store_options
@json_option
def list_holds(
    *, limit: int, before: int | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """List contracts that wait for a person, the newest first, with the reason."""
    # The store takes a moment to load, here and below, which --help should not pay.
    from meruit.cli.shared.contracts import page_of, print_holds
    from meruit.contracts.store.read import ContractFilter, ContractFilterValue
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
    """Settle what is held: you have looked, and it is to be paid by its verdict."""
    from meruit.cli.shared.contracts import check_line, run_transition
    from meruit.contracts.store.transaction import new_salt
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
    """Call off what is held: nobody is paid, and the money goes back."""
    from meruit.cli.shared.contracts import void_contract

    return void_contract(StoreAddress(data, database_url, tenant), contract_id, reason, as_json=as_json)
