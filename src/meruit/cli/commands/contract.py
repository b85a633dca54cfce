"""`meruit contract`: a contract between a consumer and an agent, from award to payment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from meruit.cli.shared.list_options import TableTarget, check_span, list_request, span_options, table_options
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    check_stdin_used_once,
    config_option,
    escape_control_characters,
    json_option,
    note,
    page_options,
    print_json,
    python_full_option,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.contracts.records import ContractSnapshot

_Command = TypeVar("_Command", bound=Callable[..., Any])

STATES = (
    *("awarded", "executing", "verification_pending", "verified"),
    *("settled", "failed", "expired", "disputed"),
)
DECISIONS = ("uphold", "reverse", "void", "adjust")
MAX_ROUNDS = 10_000
"""Most batches that `expire` handles in one call."""

contract_argument = click.argument("contract_id", metavar="CONTRACT_ID")
by_option = click.option("--by", metavar="NAME", help="Person who decides; it is recorded (default: command line).")
reason_option = click.option("--reason", required=True, metavar="TEXT", help="Reason, one line; it is recorded.")


@click.group()
def contract() -> None:
    """Award work to agents, submit the output, and settle.

    Each command prints the state of the contract, with its bill once it is paid.
    """


@contract.command()
@click.argument("work_id", metavar="WORK_ID")
@click.option("--agent-id", required=True, metavar="ID", help="Agent that gets the contract.")
@click.option("--provider-id", metavar="ID", help="Provider that runs the agent; earnings are summed by it.")
@click.option("--cpc-rate", metavar="AMOUNT", help="Price for completion (default: the price of the work).")
@tenant_option
@store_options
@json_option
def award(  # noqa: PLR0913 - one an option
    *,
    work_id: str,
    agent_id: str,
    provider_id: str | None,
    cpc_rate: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Award work to an agent and print the contract's id.

    The most that the contract can cost is held in escrow.
    """
    # Imported here, and below, so that --help is quick.
    from meruit.cli.shared.contracts import check_line, command_line_actor, print_contract, write_transition
    from meruit.cli.views.contract import amount
    from meruit.contracts.records import ContractRequest
    from meruit.contracts.transitions import AwardContract
    from meruit.model.threshold import money

    check_line("--agent-id", agent_id)
    if provider_id is not None:
        check_line("--provider-id", provider_id)
    try:
        rate = None if cpc_rate is None else money(cpc_rate)
    except ValueError as problem:
        raise click.UsageError(f"--cpc-rate: {problem}") from None
    request = ContractRequest(command_line_actor(tenant))
    with open_records(data, database_url) as store:
        snapshot = write_transition(
            store,
            AwardContract(
                request=request,
                contract_id=store.surroundings.new_id("con"),
                work_id=work_id,
                agent_id=agent_id,
                cpc_rate=rate,
                provider_id=provider_id,
            ),
        )
    if as_json:
        print_contract(snapshot, as_json=True)
        return ExitCode.PASSED
    made = snapshot.contract
    expires = made.expires_at.isoformat(timespec="seconds")
    note(f"{amount(made.hold_micros, made.currency)} is held in escrow; the contract expires at {expires}")
    say(made.id)
    return ExitCode.PASSED


@contract.command()
@contract_argument
@tenant_option
@store_options
@json_option
def start(*, contract_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Record that the agent starts; its duration counts from now."""
    from meruit.cli.shared.contracts import run_transition
    from meruit.contracts.transitions import StartContract

    return run_transition(
        StoreAddress(data=data, database_url=database_url, tenant=tenant),
        lambda request, _: StartContract(request, contract_id),
        as_json=as_json,
    )


@contract.command()
@contract_argument
@click.option(
    "--output", "output_file", metavar="OUT.json", required=True, help="Output of the agent, a JSON file; - is stdin."
)
@click.option(
    "--metadata",
    "metadata_file",
    metavar="META.json",
    help="Metadata of the run, a JSON file with duration_ms and the like.",
)
@click.option("--claims", "claims_file", metavar="CLAIMS.json", help="Metrics that the agent claims, a JSON file.")
@tenant_option
@store_options
@config_option
@python_full_option
@json_option
def complete(  # noqa: PLR0913 - one an option
    *,
    contract_id: str,
    output_file: str,
    metadata_file: str | None,
    claims_file: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Submit the output; it is verified, then settled or held.

    Exit codes: 0 the work succeeded, 1 it did not, 3 it is held until an operator decides. The command can be
    retried: the same output gets the same answer, and another output is refused.
    """
    from meruit.app import build_engine
    from meruit.cli.shared.contracts import (
        command_line_actor,
        open_marketplace,
        parse_claims,
        print_contract,
        write_transition,
    )
    from meruit.cli.views.contract import is_held
    from meruit.config import Settings
    from meruit.contracts.records import ContractRequest
    from meruit.governance.dossier import HandedIn
    from meruit.verify.load import load_payload

    check_stdin_used_once(output_file, metadata_file, claims_file, config)
    actor, settings = command_line_actor(tenant), Settings.load(config)
    engine = build_engine(settings, allow_python_full=allow_python_full)
    handed = HandedIn(
        output=load_payload(output_file),
        metadata=load_payload(metadata_file) if metadata_file is not None else {},
        claims=parse_claims(claims_file, load_payload(claims_file)) if claims_file is not None else {},
    )
    with open_marketplace(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), settings, engine
    ) as market:
        case = market.find_contract(actor, contract_id)
        snapshot = write_transition(market.store, market.completion_sync(ContractRequest(actor), case, handed))
    print_contract(snapshot, as_json=as_json, verdict=True)
    if is_held(snapshot.contract):
        note("nothing is paid until an operator decides: `meruit holds release` or `meruit holds void`")
        note(f"`meruit holds show {snapshot.contract.id}` shows the evidence")
        return ExitCode.COULD_NOT_VERIFY
    if snapshot.bill is None and _is_success(snapshot):
        note("nothing is paid yet; `meruit contract settle` pays it")
    return ExitCode.PASSED if _is_success(snapshot) else ExitCode.NOT_PASSED


def _is_success(snapshot: "ContractSnapshot") -> bool:
    judgement = snapshot.judgement
    return judgement is not None and judgement.result is not None and judgement.result.success


@contract.command()
@contract_argument
@tenant_option
@store_options
@json_option
def settle(*, contract_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Pay the contract by its verdict."""
    from meruit.cli.shared.contracts import run_transition
    from meruit.contracts.transitions import SettleContract

    return run_transition(
        StoreAddress(data=data, database_url=database_url, tenant=tenant),
        lambda request, _: SettleContract(request, contract_id),
        as_json=as_json,
    )


@contract.command()
@contract_argument
@reason_option
@by_option
@tenant_option
@store_options
@json_option
def dispute(
    *,
    contract_id: str,
    reason: str,
    by: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Open a dispute; the money is frozen until it is resolved."""
    from meruit.cli.shared.contracts import check_line, run_transition
    from meruit.contracts.transitions import DisputeContract

    check_line("--reason", reason)
    place = StoreAddress(data=data, database_url=database_url, tenant=tenant)
    return run_transition(
        place,
        lambda request, _: DisputeContract(request=request, contract_id=contract_id, reason=reason),
        by=by,
        as_json=as_json,
    )


@contract.command()
@contract_argument
@click.option(
    "--decision",
    type=click.Choice(DECISIONS),
    required=True,
    help="uphold: the verdict stays; reverse: the payment goes back into escrow; void: no payment; "
    "adjust: settle on --amount.",
)
@click.option("--amount", metavar="AMOUNT", help="With adjust: what to settle on, at most what is held or was paid.")
@click.option("--currency", metavar="CODE", help="Currency of --amount (default: the contract's).")
@reason_option
@by_option
@tenant_option
@store_options
@json_option
def resolve(  # noqa: PLR0913 - one an option
    *,
    contract_id: str,
    decision: str,
    amount: str | None,
    currency: str | None,
    reason: str,
    by: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """End a dispute: uphold, reverse, void, or settle on an amount."""
    from meruit.cli.shared.contracts import check_line, run_transition
    from meruit.contracts.lifecycle import Decision
    from meruit.contracts.transitions import ResolveDispute, to_settlement_amount
    from meruit.model.threshold import money

    check_line("--reason", reason)
    try:
        settled_on = to_settlement_amount(None if amount is None else money(amount), currency)
    except ValueError as problem:
        raise click.UsageError(f"--amount: {problem}") from None
    place, chosen = StoreAddress(data=data, database_url=database_url, tenant=tenant), Decision(decision)
    return run_transition(
        place,
        lambda request, _: ResolveDispute(
            request=request, contract_id=contract_id, decision=chosen, reason=reason, amount=settled_on
        ),
        by=by,
        as_json=as_json,
    )


@contract.command()
@contract_argument
@reason_option
@tenant_option
@store_options
@json_option
def reverse(
    *, contract_id: str, reason: str, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Move the payment back into escrow.

    A later verdict can settle the contract again, or you void it.
    """
    from meruit.cli.shared.contracts import check_line, run_transition
    from meruit.contracts.transitions import ReverseContract

    check_line("--reason", reason)
    place = StoreAddress(data=data, database_url=database_url, tenant=tenant)
    return run_transition(
        place,
        lambda request, _: ReverseContract(request=request, contract_id=contract_id, reason=reason),
        as_json=as_json,
    )


@contract.command()
@contract_argument
@reason_option
@config_option
@python_full_option
@tenant_option
@store_options
@json_option
def rejudge(  # noqa: PLR0913 - one an option
    *,
    contract_id: str,
    reason: str,
    config: str | None,
    allow_python_full: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Judge the output again; adds a version, moves no money."""
    from meruit.app import build_engine
    from meruit.cli.shared.contracts import check_line, command_line_actor, open_marketplace, print_contract
    from meruit.config import Settings
    from meruit.contracts.rejudge import rejudge as judge_again

    check_line("--reason", reason)
    actor, settings = command_line_actor(tenant), Settings.load(config)
    engine = build_engine(settings, allow_python_full=allow_python_full)
    with open_marketplace(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), settings, engine
    ) as market:
        snapshot = judge_again(market, actor, contract_id, reason)
    print_contract(snapshot, as_json=as_json, verdict=True)
    return ExitCode.PASSED


@contract.command()
@contract_argument
@reason_option
@tenant_option
@store_options
@json_option
def void(
    *, contract_id: str, reason: str, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Void a contract; the escrow goes back to the consumer."""
    from meruit.cli.shared.contracts import void_contract

    return void_contract(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), contract_id, reason, as_json=as_json
    )


@contract.command()
@store_options
@json_option
def expire(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Expire overdue contracts of every tenant; release escrow."""
    import msgspec

    from meruit.cli.shared.contracts import COMMAND_LINE
    from meruit.contracts.transitions import ExpireContracts

    expired = 0
    with open_records(data, database_url) as store:
        for _ in range(MAX_ROUNDS):
            done = store.recorder.write(ExpireContracts(COMMAND_LINE))
            expired += done
            if not done:
                break
    if as_json:
        print_json(msgspec.json.encode({"expired": expired}))
    else:
        say(f"{expired:,} expired")
    return ExitCode.PASSED


def party_options(command: _Command) -> _Command:
    """Add the options that filter contracts by their parties, their work and their award."""
    for option in (
        span_options(),
        click.option("--work-id", metavar="ID", help="Filter by work."),
        click.option("--provider-id", metavar="ID", help="Filter by the provider of the agent."),
        click.option("--consumer-id", metavar="ID", help="Filter by consumer."),
        click.option("--agent-id", metavar="ID", help="Filter by agent."),
    ):
        command = option(command)
    return command


@contract.command(name="list")
@click.option("--domain", metavar="NAME", help="Filter by domain.")
@click.option("--state", type=click.Choice(STATES), help="Filter by state.")
@party_options
@page_options
@table_options
@tenant_option
@store_options
@json_option
def list_contracts(
    *,
    limit: int,
    before: int | None,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """List contracts, newest first.

    Several filters must all hold; --since and --until are about the award. --csv and --xlsx write every contract that
    fits, with totals at the end, unless --limit is given.
    """
    from meruit.cli.shared.contracts import list_contracts as print_contracts
    from meruit.contracts.records import ContractFilter

    check_span(chosen["since"], chosen["until"])
    asked = list_request(before, limit, table, as_json=as_json)
    print_contracts(StoreAddress(data=data, database_url=database_url, tenant=tenant), ContractFilter(**chosen), asked)
    return ExitCode.PASSED


@contract.command()
@contract_argument
@tenant_option
@store_options
@json_option
def show(*, contract_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show a contract with its verdict and its bill.

    With --json also its terms.
    """
    from meruit.cli.shared.contracts import print_contract
    from meruit.cli.views.contract import describe_latency_basis
    from meruit.contracts.records import latency_basis_of, load_snapshot_in_full
    from meruit.model.access import Scope

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = load_snapshot_in_full(connection, Scope(tenant), contract_id)
    if not as_json:
        one = found.contract
        moments = {
            "awarded": one.awarded_at,
            "input read": one.input_read_at,
            "started": one.started_at,
            "completed": one.completed_at,
            "settled": one.settled_at,
            "runs until": one.expires_at if one.completed_at is None else None,
        }
        labels = {"contract": one.id, "work": one.work_id, "agent": one.agent_id, "consumer": one.consumer_id}
        labels |= {name: at.isoformat(timespec="seconds") for name, at in moments.items() if at is not None}
        labels["time from"] = describe_latency_basis(latency_basis_of(one))
        labels |= {"outcome": one.outcome_id} if one.outcome_id is not None else {}
        if (hold := found.on_hold) is not None:
            by = "" if hold.by is None else f" by {hold.by}"
            labels[str(hold.kind)] = f"since {hold.since.isoformat(timespec='seconds')}{by}: {hold.reason}"
        for name, value in labels.items():
            say(f"{name:12}{escape_control_characters(value)}")
        for move in found.history or ():
            if move.reason:
                say(f"{move.operation:12}{escape_control_characters(f'by {move.by}: {move.reason}')}")
        say()
    print_contract(found, as_json=as_json, verdict=True)
    return ExitCode.PASSED
