"""How many rows a tenant has: of all tables in one question, for it is asked before and after nearly every move."""

from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, select

from meruit.store import tables
from meruit.store.store import Store

OF_TENANTS = tuple(table.name for table in tables.metadata.sorted_tables if "tenant" in table.c)


def rows_of(store: Store, tenant: str, names: tuple[str, ...] = OF_TENANTS) -> dict[str, int]:
    """By table."""
    with store.database.reading() as connection:
        return dict(connection.execute(_question(names), {"whose": tenant}).one()._mapping)


@cache
def _question(names: tuple[str, ...]) -> Select[Any]:
    several = [tables.metadata.tables[name] for name in names]
    return select(
        *(
            select(func.count()).where(table.c.tenant == bindparam("whose")).scalar_subquery().label(table.name)
            for table in several
        )
    )
