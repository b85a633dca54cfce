"""`meruit ledger`: balances, statements, earnings, and proof that the books are correct."""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.list_options import TableTarget, check_span, span_options, table_options, write_table
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
    from collections.abc import Iterator, Sequence

    from meruit.contracts.earnings import EarningsReport
    from meruit.contracts.records import Statement
    from meruit.documents.csv_table import Cell

FROM_TO = ("--from", "--to")


@click.group()
def ledger() -> None:
    """Show balances, statements and earnings, and verify the books."""


@ledger.command()
@click.option("--escrows", is_flag=True, help="List the escrow of each contract instead of the sum.")
@table_options
@tenant_option
@store_options
@json_option
def balances(
    *,
    escrows: bool,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List every account with its balance.

    A consumer's balance is negative by the amount that the consumer has funded.
    """
    # Imported here, and below, so that --help is quick.
    import msgspec

    from meruit.contracts.list_csv import BALANCE_HEADINGS, balance_cells
    from meruit.contracts.records import iterate_balances
    from meruit.model.numbers import in_units

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = iterate_balances(connection, tenant, escrows=escrows)
        if table is not None:
            write_table(table, BALANCE_HEADINGS, map(balance_cells, found))
            return ExitCode.PASSED
        rows = [(one.account, one.currency, in_units(one.micros)) for one in found]
    if as_json:
        print_json(msgspec.json.encode({"balances": [dict(zip(BALANCE_HEADINGS, row, strict=True)) for row in rows]}))
    else:
        print_table(BALANCE_HEADINGS, rows)
    return ExitCode.PASSED


@ledger.command()
@click.argument("account", metavar="ACCOUNT", required=False)
@click.option("--currency", metavar="CODE", help="Currency (default: every currency of the account).")
@span_options(*FROM_TO)
@table_options
@tenant_option
@store_options
@json_option
def statement(  # noqa: PLR0913 - one an option
    *,
    account: str | None,
    currency: str | None,
    since: datetime | None,
    until: datetime | None,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List the transactions of an account, oldest first.

    ACCOUNT is agent:ID, consumer:ID, platform or escrow:CONTRACT_ID. A date is 2026-11-30, which begins at midnight
    UTC, or 2026-11-30T12:00:00Z. All of November is --from 2026-11-01 --to 2026-12-01.
    """
    from meruit.contracts.list_csv import STATEMENT_HEADINGS, statement_rows
    from meruit.contracts.records import MAX_LINES, iterate_lines, require_account
    from meruit.contracts.records import statement as drawn_up

    if account is None:
        option = "--xlsx" if table and table.is_xlsx else "--csv"
        hint = f"; {table.file!r} was read as the FILE of {option}, so write ACCOUNT before {option}" if table else ""
        raise click.UsageError(escape_control_characters(f"name the ACCOUNT{hint}"))
    _check_currency(currency)
    check_span(since, until, FROM_TO)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        known = require_account(connection, tenant, account)
        currencies = known if currency is None else [currency]
        if not known or currency not in (None, *known):
            where = "" if currency is None else f" in {currency}"
            others = f"; it has {', '.join(known)}" if known else ""
            note(escape_control_characters(f"{account} has no transactions{where}{others}"))
        if table is not None:

            def rows() -> "Iterator[Sequence[Cell]]":
                for one in currencies:
                    # The lines are read while they are written, so that their number is not limited.
                    asked = drawn_up(connection, tenant, account, one, since, until, limit=0)
                    yield from statement_rows(asked, iterate_lines(connection, tenant, asked))

            write_table(table, STATEMENT_HEADINGS, rows())
            return ExitCode.PASSED
        found = [drawn_up(connection, tenant, account, one, since, until) for one in currencies]
    if any(len(one.lines) >= MAX_LINES for one in found):
        note(f"only the first {MAX_LINES:,} lines are shown; give a shorter period, or --csv or --xlsx for all")
    if as_json:
        _print_json(account, since, until, found)
    else:
        for one in found:
            _print(one)
    return ExitCode.PASSED


def _check_currency(currency: str | None) -> None:
    from meruit.model.money import CURRENCIES
    from meruit.suggestions import nearest

    if currency is not None and currency not in CURRENCIES:
        raise click.UsageError(f"{currency!r} is not a known currency{nearest(currency.upper(), CURRENCIES)}")


def _print_json(account: str, since: datetime | None, until: datetime | None, found: "Sequence[Statement]") -> None:
    import msgspec

    from meruit.contracts.statement_view import to_statement_view

    whole = {"account": account, "from": since, "to": until, "statements": [to_statement_view(one) for one in found]}
    print_json(msgspec.json.encode(whole))


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
            line.counterparty or "–",
            line.title or "–",
        )
        for line in found.lines
    ]
    print_table(("at (UTC)", "contract", "what", "amount", "balance", "counterparty", "title"), rows)
    say(escape_control_characters(f"{found.account} in {found.currency}: {in_units(found.closing)} after"))


@ledger.command()
@click.option("--agent-id", metavar="ID", help="Filter by agent.")
@click.option("--provider-id", metavar="ID", help="Filter by provider; an agent without one is its own.")
@click.option("--currency", metavar="CODE", help="Filter by currency.")
@span_options()
@table_options
@tenant_option
@store_options
@json_option
def earnings(  # noqa: PLR0913 - one an option
    *,
    agent_id: str | None,
    provider_id: str | None,
    currency: str | None,
    since: datetime | None,
    until: datetime | None,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Sum what agents and providers earned, by day.

    Days are UTC. A payment counts on the day when it was made, and its reversal on the day of the reversal. Gross is
    what consumers paid, fee the platform's part, net the agent's part.
    """
    from meruit.contracts.earnings import to_earnings_report
    from meruit.contracts.list_csv import EARNINGS_HEADINGS, earnings_rows
    from meruit.contracts.records import EarningsFilter, sum_earnings

    _check_currency(currency)
    check_span(since, until)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        wanted = EarningsFilter(agent_id, provider_id, currency, since, until)
        found = sum_earnings(connection, tenant, wanted)
    if table is not None:
        write_table(table, EARNINGS_HEADINGS, earnings_rows(found))
    elif as_json:
        print_json(to_earnings_report(found).to_json())
    else:
        _print_earnings(to_earnings_report(found))
    return ExitCode.PASSED


def _print_earnings(report: "EarningsReport") -> None:
    days = [
        (
            one.day.isoformat(),
            *(one.provider_id, one.agent_id, one.currency, f"{one.settlements:,}", f"{one.reversals:,}"),
            *(one.gross, one.fee, one.net),
        )
        for one in report.earnings
    ]
    totals = [("total", "", "", one.currency, "", "", one.gross, one.fee, one.net) for one in report.totals]
    headings = ("day (UTC)", "provider", "agent", "currency", "settled", "reversed", "gross", "fee", "net")
    print_table(headings, [*days, *totals])


@ledger.command()
@click.option("--tenant", metavar="NAME", help="Tenant to check (default: every tenant).")
@store_options
@json_option
def check(*, tenant: str | None, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Verify the books: no money made or lost, payments justified.

    Checks that every payment has its verdict, that balances agree with the audit log, and that the log agrees with its
    signed checkpoints. Reads all transactions. Exit codes: 0 the books are sound, 1 they are not; each violation is
    printed.
    """
    import msgspec

    from meruit.audit.check import begin_check, check_log
    from meruit.cli.views.contract import describe_violations
    from meruit.contracts.invariants import find_violations
    from meruit.contracts.records import books, tenants

    found: dict[str, list[str]] = {}
    contracts = 0
    with open_records(data, database_url) as store:
        check = begin_check(store)
        with store.database.reading() as connection:
            for one in tenants(connection) if tenant is None else [tenant]:
                ledger_books = books(connection, one)
                contracts += len(ledger_books.contracts)
                found[one] = find_violations(ledger_books)
            # Books that agree with a log prove nothing if the log was rewritten with them.
            problems = check_log(connection, check).problems
            found["audit log"] = [f"{one.code} {one.where}: {one.message}" for one in problems]
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
