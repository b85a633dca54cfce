"""Show what a transition would do before it is done: the same code runs, and nothing of it is kept."""

import msgspec
from sqlalchemy import Connection, select

from meruit.contracts.postings import Posting
from meruit.contracts.store.read import ContractSnapshot
from meruit.store import tables
from meruit.store.recorder import Write
from meruit.store.transaction import WriteTransaction


class TransitionPreview(msgspec.Struct, frozen=True):
    """What a transition would do."""

    after: ContractSnapshot
    postings: tuple[Posting, ...]
    """What it would add to each account, in the order of its transfers."""

    @property
    def changes(self) -> dict[str, int]:
        """What it would add to each account, in millionths."""
        sums: dict[str, int] = {}
        for account, micros in self.postings:
            sums[account] = sums.get(account, 0) + micros
        return sums


class PreviewTransition(msgspec.Struct, frozen=True):
    """Run a transition and take it back; raises what the transition raises."""

    transition: Write[ContractSnapshot]

    def __call__(self, writing: WriteTransaction) -> TransitionPreview:
        """Find out what the transition would write; nothing is written."""
        mark = writing.mark()
        try:
            after = self.transition(writing)
            rows = writing.rows_since(mark, tables.postings)
        finally:
            writing.roll_back_to(mark)
        return TransitionPreview(after, tuple(Posting(row["account"], row["micros"]) for row in rows))


class AccountChange(msgspec.Struct, frozen=True):
    """An account before and after a transition, in millionths."""

    account: str
    now: int
    after: int


def with_balances(connection: Connection, tenant: str, preview: TransitionPreview) -> list[AccountChange]:
    """The accounts that a transition would change, with what each has now."""
    changes, table = preview.changes, tables.balances
    query = select(table.c.account, table.c.micros).where(
        table.c.tenant == tenant,
        table.c.currency == preview.after.contract.currency,
        table.c.account.in_(changes),
    )
    now = {account: int(micros) for account, micros in connection.execute(query)}
    return [
        AccountChange(account=account, now=now.get(account, 0), after=now.get(account, 0) + micros)
        for account, micros in changes.items()
    ]
