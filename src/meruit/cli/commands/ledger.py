"""`meruit ledger`: balances, statements, and proof that the books are correct."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.contracts.records import Statement

COLUMNS = ("at", "account", "currency", "contract_id", "operation", "amount", "balance", "leaf")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "|", "%")
"""First characters of text that a spreadsheet would compute as a formula."""
_DAY = r"\d{4}-\d\d-\d\d"
_MOMENT = re.compile(rf"({_DAY})([Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d))?", re.ASCII)


def parse_moment(ctx: click.Context, param: click.Parameter, typed: str | None) -> datetime | None:
    """Parse a day, which begins at midnight UTC, or a moment with its time zone."""
    if typed is None:
        return None
    try:
        found = datetime.fromisoformat(typed.upper()) if _MOMENT.fullmatch(typed) else None
        found = found.astimezone(UTC) if found is not None and found.tzinfo is not None else found
    except (ValueError, OverflowError):
        found = None
    if found is None:
        wrong = f"{typed!r} is not a valid date: write 2026-11-30, or 2026-11-30T12:00:00Z"
        raise click.BadParameter(escape_control_characters(wrong), ctx, param)
    return found.replace(tzinfo=UTC)


@click.group()
def ledger() -> None:
    """Show balances and statements, and verify the books."""


@ledger.command()
@click.option("--escrows", is_flag=True, help="List the escrow of each contract instead of the sum.")
@tenant_option
@store_options
@json_option
def balances(*, escrows: bool, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """List every account with its balance.

    A consumer's balance is negative by the amount that the consumer has funded.
    """
    # Imported here, and below, so that --help is quick.
    import msgspec

    from meruit.contracts.records import balances as found_in
    from meruit.model.numbers import in_units

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = found_in(connection, tenant, escrows=escrows)
    rows = [(one.account, one.currency, in_units(one.micros)) for one in found]
    if as_json:
        names = ("account", "currency", "balance")
        print_json(msgspec.json.encode({"balances": [dict(zip(names, row, strict=True)) for row in rows]}))
    else:
        print_table(("account", "currency", "balance"), rows)
    return ExitCode.PASSED


@ledger.command()
@click.argument("account", metavar="ACCOUNT")
@click.option("--currency", default="USD", show_default=True, metavar="CODE", help="Currency.")
@click.option(
    "--from", "since", callback=parse_moment, metavar="DATE", help="First day or moment (default: the beginning)."
)
@click.option("--to", "until", callback=parse_moment, metavar="DATE", help="End, exclusive (default: now).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a line of headings.")
@tenant_option
@store_options
@json_option
def statement(  # noqa: PLR0913 - one an option
    *,
    account: str,
    currency: str,
    since: datetime | None,
    until: datetime | None,
    as_csv: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List the transactions of an account, oldest first.

    ACCOUNT is agent:ID, consumer:ID, platform or escrow:CONTRACT_ID. A date is 2026-11-30, which begins at midnight
    UTC, or 2026-11-30T12:00:00Z. All of November is --from 2026-11-01 --to 2026-12-01.
    """
    from meruit.contracts.records import MAX_LINES
    from meruit.contracts.records import statement as drawn_up
    from meruit.errors import nearest
    from meruit.model.money import CURRENCIES

    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be combined; give one of them")
    if currency not in CURRENCIES:
        raise click.UsageError(f"{currency!r} is not a known currency{nearest(currency.upper(), CURRENCIES)}")
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--to must be later than --from; it is exclusive")
    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = drawn_up(connection, tenant, account, currency, since, until)
    if not found.lines and not found.opening:
        note(f"no transactions on {account} in {currency}; `meruit ledger balances` lists the accounts")
    if len(found.lines) >= MAX_LINES:
        note(f"only the first {MAX_LINES:,} lines are shown; give a shorter period")
    if as_json:
        _print_json(found)
    elif as_csv:
        _print_csv(found)
    else:
        _print(found)
    return ExitCode.PASSED


def _lines(found: "Statement") -> list[dict[str, str | int]]:
    """Lines of a statement, amounts as decimal text."""
    from meruit.model.numbers import in_units
    from meruit.model.time import to_rfc3339

    return [
        {
            "at": to_rfc3339(line.at),
            "contract_id": line.contract_id,
            "operation": line.operation,
            "amount": in_units(line.micros),
            "balance": in_units(line.balance),
            "leaf": line.leaf,
        }
        for line in found.lines
    ]


def _print_json(found: "Statement") -> None:
    import msgspec

    from meruit.model.numbers import in_units

    whole = {
        "account": found.account,
        "currency": found.currency,
        "from": found.since,
        "to": found.until,
        "opening": in_units(found.opening),
        "closing": in_units(found.closing),
        "lines": _lines(found),
    }
    print_json(msgspec.json.encode(whole))


def _print_csv(found: "Statement") -> None:
    """Print CSV as in RFC 4180, lines ending in CR LF; each line repeats the account."""
    import csv
    import io

    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS)
    writer.writeheader()
    account = escape_formula(found.account)
    for line in _lines(found):
        writer.writerow({**line, "account": account, "currency": found.currency})
    say(written.getvalue().removesuffix("\n"))


def escape_formula(name: str) -> str:
    """Quote a user-chosen name, so that no spreadsheet reads it as a formula."""
    return f"'{name}" if name.startswith(FORMULA) else name


def _print(found: "Statement") -> None:
    from meruit.model.numbers import in_units

    say(escape_control_characters(f"{found.account} in {found.currency}: {in_units(found.opening)} before"))
    rows = [
        (
            line.at.strftime("%Y-%m-%d %H:%M:%S"),
            line.contract_id,
            line.operation,
            in_units(line.micros),
            in_units(line.balance),
        )
        for line in found.lines
    ]
    print_table(("at (UTC)", "contract", "what", "amount", "balance"), rows)
    say(escape_control_characters(f"{found.account} in {found.currency}: {in_units(found.closing)} after"))


@ledger.command()
@click.option("--tenant", metavar="NAME", help="Tenant to check (default: every tenant).")
@store_options
@json_option
def check(*, tenant: str | None, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Verify the books: no money made or lost, payments justified.

    Checks that every payment has its verdict and that balances agree with the audit log. Reads all transactions. Exit
    codes: 0 the books are sound, 1 they are not; each violation is printed.
    """
    import msgspec

    from meruit.cli.views.contract import describe_violations
    from meruit.contracts.invariants import find_violations
    from meruit.contracts.records import books, tenants

    found: dict[str, list[str]] = {}
    contracts = 0
    with open_records(data, database_url) as store, store.database.reading() as connection:
        for one in tenants(connection) if tenant is None else [tenant]:
            kept = books(connection, one)
            contracts += len(kept.contracts)
            found[one] = find_violations(kept)
    violations = [(one, what) for one, several in found.items() for what in several]
    if as_json:
        listed = [{"tenant": one, "what": what} for one, what in violations]
        print_json(msgspec.json.encode({"sound": not listed, "contracts": contracts, "violations": listed}))
    else:
        for one, what in violations:
            say(escape_control_characters(f"{one}: {what}"))
        say(f"{describe_violations(len(violations))}: {contracts:,} contracts")
    return ExitCode.NOT_PASSED if violations else ExitCode.PASSED


@ledger.command()
@json_option
def rules(*, as_json: bool) -> int:
    """List the settlement rules that terms can name."""
    import msgspec

    from meruit.registry import settlement_rules

    found = [(rule.name, rule.summary) for rule in settlement_rules]
    if as_json:
        print_json(msgspec.json.encode([{"name": name, "summary": summary} for name, summary in found]))
    else:
        print_table(("rule", "what it does"), found)
    return ExitCode.PASSED
