"""A connection of the driver's own: text goes past SQLAlchemy, and a query of SQLAlchemy's goes to it on the same one.

SQLAlchemy takes as long to load as all else that a command needs to record one outcome, and each of its statements
costs as much as a small record. So it is loaded when a query of its own is first executed.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine
    from sqlalchemy.sql.base import Executable

FRESH_S = 1.0
"""How long a connection to a server may be unused before it is tested."""


class DriverConnection(ABC):
    """One connection, in one transaction at a time."""

    style: str
    """`sqlite` or `postgresql`."""

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement finds, as plain tuples; parameters are marked by `?`."""
        return self._call(statement, values, several=False)

    def run(self, statement: str, *values: Any) -> None:
        """Execute a statement that finds nothing."""
        self._call(statement, values, several=False)

    def run_all(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute a statement once for each row."""
        self._call(statement, rows, several=True)

    # Any: columns of several types, here and below.
    def execute(self, query: "Executable", parameters: Sequence[dict[str, Any]] | None = None) -> "CursorResult[Any]":
        """Execute a query of SQLAlchemy's."""
        return self._alchemy().execute(query, parameters)

    def ask(self, statement: str, *values: Any) -> Sequence[Any]:
        """The rows that a statement finds, with the names of their columns."""
        return self._alchemy().exec_driver_sql(in_style(statement, self.style), values).all()

    @abstractmethod
    def begin(self, *, writes: bool = True) -> None:
        """Begin a transaction; one that writes says so at once, so that it never has to give up."""

    @abstractmethod
    def commit(self) -> None:
        """Make the transaction durable."""

    @abstractmethod
    def roll_back(self) -> None:
        """Undo what the transaction did, if there is one."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection; it is opened again when it is used again."""

    @abstractmethod
    def _call(self, statement: str, values: Sequence[Any], *, several: bool) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _alchemy(self) -> "Connection": ...


class SqliteConnection(DriverConnection):
    """A connection to an SQLite file, opened when it is first used."""

    style = "sqlite"

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._driver: sqlite3.Connection | None = None
        self._sqlalchemy: Connection | None = None

    def begin(self, *, writes: bool = True) -> None:
        """Begin a transaction on the connection, which is opened if it is not."""
        if self._driver is None:
            self._driver = self._translated(self._connect)
        self.run("BEGIN IMMEDIATE" if writes else "BEGIN")

    def commit(self) -> None:
        """Make the transaction durable."""
        self.run("COMMIT")

    def roll_back(self) -> None:
        """Undo what the transaction did, if there is one."""
        if self._driver is not None and self._driver.in_transaction:
            self.run("ROLLBACK")

    def close(self) -> None:
        """Let go of the connection."""
        driver, self._driver, self._sqlalchemy = self._driver, None, None
        if driver is not None:
            driver.close()

    def _call(self, statement: str, values: Sequence[Any], *, several: bool) -> list[tuple[Any, ...]]:
        driver = self._driver
        if driver is None:
            raise RuntimeError("no transaction has begun")
        try:
            if several:
                driver.executemany(statement, values)
                return []
            return driver.execute(statement, values).fetchall()
        except sqlite3.Error as problem:
            raise as_alchemy_error(problem, sqlite3.Error) from problem

    def _alchemy(self) -> "Connection":
        if self._sqlalchemy is None:
            from sqlalchemy import create_engine
            from sqlalchemy.pool import StaticPool

            driver = self._driver
            if driver is None:
                raise RuntimeError("no transaction has begun")
            engine = create_engine(
                "sqlite+pysqlite://", creator=lambda: driver, poolclass=StaticPool, pool_reset_on_return=None
            )
            self._sqlalchemy = engine.connect()
        return self._sqlalchemy

    @staticmethod
    def _translated(connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        try:
            return connect()
        except sqlite3.Error as problem:
            raise as_alchemy_error(problem, sqlite3.Error) from problem


class StatementTransactions(sqlite3.Connection):
    """A connection whose transactions begin and end by statements alone: SQLAlchemy cannot end one of ours."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""


class PostgresConnection(DriverConnection):
    """A connection of an engine's pool, kept as long as it is used often."""

    style = "postgresql"

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._sqlalchemy: Connection | None = None
        self._used_at = 0.0

    def begin(self, *, writes: bool = True) -> None:  # noqa: ARG002 - the engine decides
        """Take a connection that works; the first statement begins the transaction."""
        if self._sqlalchemy is not None and monotonic() - self._used_at > FRESH_S:
            # The pool tests it, and replaces one that died.
            self.close()
        if self._sqlalchemy is None:
            self._sqlalchemy = self._engine.connect()
        self._sqlalchemy.begin()

    def commit(self) -> None:
        """Make the transaction durable."""
        self._alchemy().commit()
        self._used_at = monotonic()

    def roll_back(self) -> None:
        """Undo the transaction; the pool tests the connection before it is used again."""
        self.close()

    def close(self) -> None:
        """Give the connection back, which ends its transaction."""
        connection, self._sqlalchemy = self._sqlalchemy, None
        if connection is not None:
            connection.close()

    def _call(self, statement: str, values: Sequence[Any], *, several: bool) -> list[tuple[Any, ...]]:
        connection = self._alchemy()
        # Any: a cursor that found no rows has None for their description, which SQLAlchemy's type leaves out.
        cursor: Any
        with closing(connection.connection.cursor()) as cursor:
            try:
                if several:
                    cursor.executemany(in_style(statement, self.style), values)
                    return []
                cursor.execute(in_style(statement, self.style), values)
                return [*cursor.fetchall()] if cursor.description is not None else []
            except connection.dialect.loaded_dbapi.Error as problem:
                raise as_alchemy_error(problem, connection.dialect.loaded_dbapi.Error) from problem

    def _alchemy(self) -> "Connection":
        if self._sqlalchemy is None:
            raise RuntimeError("no transaction has begun")
        return self._sqlalchemy


def as_alchemy_error(problem: Exception, base: type[Exception]) -> BaseException:
    """A driver's error as SQLAlchemy raises it, so that callers need to know one kind."""
    from sqlalchemy.exc import DBAPIError

    return DBAPIError.instance(None, None, problem, base)


def in_style(statement: str, style: str) -> str:
    """The statement as the driver marks its parameters."""
    return statement if style == "sqlite" else statement.replace("?", "%s")
