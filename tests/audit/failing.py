"""A check whose slices fail at several of their statements, and are tried again."""

from typing import Any

from sqlalchemy import event

from meruit.audit.check import LogCheck, begin_check
from meruit.errors import StoreUnavailable
from meruit.store.store import Store


def check_with_failures(store: Store) -> LogCheck:
    """Check a store: each slice fails at its first statement, then at a later one, until it has no more."""
    check, more = begin_check(store), True
    statements = fails_at = 0

    def fail(*_: Any) -> None:
        nonlocal statements
        statements += 1
        if statements == fails_at:
            raise StoreUnavailable("the database went away")

    engine = store.database.reader
    event.listen(engine, "before_cursor_execute", fail)
    try:
        while more:
            statements, fails_at = 0, max(fails_at + 1, fails_at * 3 // 2)
            try:
                with store.database.reading() as connection:
                    more = check.check_slice(connection)
            except StoreUnavailable:
                continue
            fails_at = 0
    finally:
        event.remove(engine, "before_cursor_execute", fail)
    return check.result()
