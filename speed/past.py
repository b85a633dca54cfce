"""A long past made quickly: copies of one settled contract, which `meruit audit check` accepts.

The entries of the log go through the recorder, which hashes them and signs the end of the log. All other rows are
copied inside the database. Results, dossiers and events still name the first contract.
"""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

import psycopg

from meruit.store.location import FILE, Location
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

TENANT = "default"
AT_ONCE = 2_000
"""Contracts whose entries share a transaction."""

# Each table with what differs in its copies: {id} is a text of 34 digits, {i} the number of the copy from 1.
_COPIES = {
    "contracts": {"id": "'con_' || {id}", "seq": "t.seq + {leaf}", "outcome_id": "'out_' || {id}"},
    "contract_transitions": {"contract_id": "'con_' || {id}"},
    "settlements": {"contract_id": "'con_' || {id}", "leaf": "t.leaf + {leaf}", "outcome_id": "'out_' || {id}"},
    "transfers": {"contract_id": "'con_' || {id}", "leaf": "t.leaf + {leaf}"},
    "postings": {"leaf": "t.leaf + {leaf}", "account": "replace(t.account, '{contract}', 'con_' || {id})"},
    "outcomes": {
        "id": "'out_' || {id}",
        "seq": "t.seq + {i}",
        "contract_id": "'con_' || {id}",
        "evidence_leaf": "t.evidence_leaf + {leaf}",
    },
    "verdicts": {"outcome_id": "'out_' || {id}", "leaf": "t.leaf + {leaf}"},
    "governance_checks": {"outcome_id": "'out_' || {id}", "leaf": "t.leaf + {leaf}"},
    "events": {"seq": "t.seq + {i} * {events}"},
    "first_outputs": {
        "output_hash": "{id} || substr(t.output_hash, 35)",
        "input_hash": "{id} || substr(t.input_hash, 35)",
    },
    "output_sketches": {"input_hash": "{id} || substr(t.input_hash, 35)"},
    "balances": {"account": "'escrow:con_' || {id}"},
}
_ONLY = {"balances": " WHERE t.account LIKE 'escrow:%'"}
_PARTIES = "UPDATE balances SET micros = micros * {count} WHERE account NOT LIKE 'escrow:%'"


class _Entry(NamedTuple):
    """An entry of the first contract."""

    seq: int
    contract_seq: int
    body: bytes


class _First(NamedTuple):
    """The contract that is copied, alone in its store."""

    contract: str
    outcome: str
    entries: list[_Entry]
    log_size: int
    events: int


def copy_contract(location: Location, contract: str, count: int) -> None:
    """Add so many copies of a settled contract to a store that holds no other."""
    store = Store.open(location)
    try:
        first = store.recorder.write(lambda writing: _read(writing, contract))
        for start in range(1, count + 1, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count + 1))
            # The last end of the log is signed, so that the next process need not read all entries.
            store.recorder.write(_append(first, numbers), sign_now=numbers.stop > count)
    finally:
        store.close()
    _copy_rows(location, first, count)


def _read(writing: WriteTransaction, contract: str) -> _First:
    entries = [
        _Entry(seq, number, bytes(body))
        for seq, number, body in writing.fetch(
            "SELECT seq, contract_seq, body FROM log_leaves WHERE contract_id = ? ORDER BY seq", contract
        )
    ]
    # Else the entries of the copies would have other distances.
    assert [one.seq - entries[0].seq for one in entries] == [*range(len(entries))]
    ((outcome,),) = writing.fetch("SELECT outcome_id FROM contracts")
    return _First(contract, outcome, entries, writing.log_size, writing.events)


def _append(first: _First, numbers: range) -> Callable[[WriteTransaction], None]:
    """The entries of some copies, numbered as their rows are."""

    def write(writing: WriteTransaction) -> None:
        begin, before, outcome_before = first.entries[0].seq, first.contract.encode(), first.outcome.encode()
        for number in numbers:
            contract, outcome = f"con_{number:034d}", b"out_%034d" % number
            # How far the first entry of this one is from that of the first contract.
            further = writing.log_size + (number - numbers[0]) * len(first.entries) - begin
            for one in first.entries:
                body = one.body.replace(before, contract.encode()).replace(outcome_before, outcome)
                name, found, rest = body.partition(b'"evidence_index":')
                if found:
                    index, comma, rest = rest.partition(b",")
                    body = b"%b%b%d%b%b" % (name, found, int(index) + further, comma, rest)
                writing.append_bytes(body, TENANT, contract, one.contract_seq)
        writing.outcomes += len(numbers)
        writing.events += len(numbers) * first.events

    return write


def _copy_rows(location: Location, first: _First, count: int) -> None:
    parties = _PARTIES.format(count=count + 1)
    if location.url is None:
        connection = sqlite3.connect(location.folder / FILE, isolation_level=None)
        # Nothing else reads it meanwhile, and a write-ahead log would take as much room again.
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for table in _COPIES:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(_copying(table, names, first, count, "printf('%034d', n.i)"))
        connection.execute(parties)
        connection.execute("COMMIT")
        connection.execute("ANALYZE")
        connection.close()
        return
    with psycopg.connect(location.url, autocommit=True) as opened:
        for table in _COPIES:
            names = [column.name for column in opened.execute(f"SELECT * FROM {table} LIMIT 0").description or ()]
            opened.execute(_copying(table, names, first, count, "lpad(n.i::text, 34, '0')").encode())
        opened.execute(parties.encode())
        opened.execute("ANALYZE")


def _copying(table: str, names: list[str], first: _First, count: int, number: str) -> str:
    # The entries of the first copy follow all that the log held before.
    leaf = f"{first.log_size - first.entries[0].seq} + (n.i - 1) * {len(first.entries)}"
    known = {"id": number, "i": "n.i", "leaf": leaf, "events": first.events, "contract": first.contract}
    changed = {name: how.format(**known) for name, how in _COPIES[table].items()}
    values = ", ".join(changed.get(name, f"t.{name}") for name in names)
    counted = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    # Copy after copy, so that every index grows at its end.
    return (
        f"INSERT INTO {table} ({', '.join(names)}) {counted} SELECT {values} FROM n CROSS JOIN {table} t"
        f"{_ONLY.get(table, '')} ORDER BY n.i"
    )
