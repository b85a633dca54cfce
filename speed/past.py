"""A long past made quickly: copies of one settled contract, which `meruit audit check` accepts.

The entries of the log go through the recorder, which hashes them and signs the end of the log. So do dossiers, because
each is given another history of the agent. All other rows are copied inside the database. Results, dossiers and events
still name the first contract.
"""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

import psycopg
from msgspec import structs
from sqlalchemy import update

from meruit.governance.history import AgentHistory, baselines, recent, update_history
from meruit.governance.store import DAY_MICROS, HistoryKind
from meruit.log.commitment import commitment
from meruit.model.governance import GovernanceCheck
from meruit.store import tables
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
    "events": {"seq": "t.seq + {i} * {events}"},
    "first_outputs": {
        "output_hash": "{id} || substr(t.output_hash, 35)",
        "input_hash": "{id} || substr(t.input_hash, 35)",
    },
    "output_sketches": {"input_hash": "{id} || substr(t.input_hash, 35)"},
    "balances": {"account": "'escrow:con_' || {id}"},
}
_ONLY = {"balances": " WHERE t.account LIKE 'escrow:%'"}
_MULTIPLIED = (
    "UPDATE balances SET micros = micros * {count} WHERE account NOT LIKE 'escrow:%'",
    "UPDATE dealings SET outcomes = outcomes * {count}, with_bonus = with_bonus * {count}",
)


class _Entry(NamedTuple):
    """An entry of the first contract."""

    seq: int
    contract_seq: int
    body: bytes


class _Believed(NamedTuple):
    """The dossier of the first contract, with the row that it is in."""

    check: GovernanceCheck
    commitment: bytes
    """As the log has it."""
    disposition: str
    at: int
    leaf: int
    salt: bytes


class _First(NamedTuple):
    """The contract that is copied, alone in its store."""

    contract: str
    outcome: str
    entries: list[_Entry]
    log_size: int
    events: int
    believed: _Believed


def copy_contract(location: Location, contract: str, count: int) -> None:
    """Add so many copies of a settled contract to a store that holds no other."""
    store = Store.open(location)
    try:
        first = store.recorder.write(lambda writing: _read(writing, contract))
        # The history of the agent before the next copy, which is the one after the first contract.
        memory = _remember(AgentHistory(), first.believed)
        for start in range(1, count + 1, AT_ONCE):
            numbers, dossiers = range(start, min(start + AT_ONCE, count + 1)), list[bytes]()
            for _ in numbers:
                dossiers.append(_dossier(memory, first.believed))
                memory = _remember(memory, first.believed)
            write = _append(first, numbers, dossiers, memory)
            # The last end of the log is signed, so that the next process need not read all entries.
            store.recorder.write(write, sign_now=numbers.stop > count)
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
    ((body, disposition, at, leaf, salt),) = writing.fetch(
        "SELECT body, disposition, at, leaf, salt FROM governance_checks"
    )
    believed = _Believed(
        check=GovernanceCheck.from_json(bytes(body)),
        commitment=commitment(bytes(salt), bytes(body)).encode(),
        disposition=disposition,
        at=at,
        leaf=leaf,
        salt=bytes(salt),
    )
    return _First(contract, outcome, entries, writing.log_size, writing.events, believed)


def _remember(memory: AgentHistory, believed: _Believed) -> AgentHistory:
    """The history of the agent after one contract more."""
    mismatch = "latency_mismatch" in believed.check.result.names
    return update_history(memory, believed.check.dossier.metrics, believed.at // DAY_MICROS, mismatch=mismatch)


def _dossier(memory: AgentHistory, believed: _Believed) -> bytes:
    """The dossier of a contract before which the agent had this history."""
    dossier = believed.check.dossier
    margins, accuracies = recent(memory, dossier.metrics)
    history = structs.replace(
        dossier.history,
        margins=margins,
        accuracies=accuracies,
        latency_mismatches=memory.mismatches,
        baselines=baselines(memory, {fact.metric for fact in dossier.metrics}, believed.at // DAY_MICROS),
    )
    return structs.replace(believed.check, dossier=structs.replace(dossier, history=history)).to_json()


def _append(
    first: _First, numbers: range, dossiers: list[bytes], memory: AgentHistory
) -> Callable[[WriteTransaction], None]:
    """The entries and dossiers of some copies, numbered as their rows are, and the history that they lead to."""
    believed = first.believed

    def write(writing: WriteTransaction) -> None:
        begin, before, outcome_before = first.entries[0].seq, first.contract.encode(), first.outcome.encode()
        for number, dossier in zip(numbers, dossiers, strict=True):
            contract, outcome = f"con_{number:034d}", b"out_%034d" % number
            # How far the first entry of this one is from that of the first contract.
            further = writing.log_size + (number - numbers[0]) * len(first.entries) - begin
            for one in first.entries:
                body = one.body.replace(before, contract.encode()).replace(outcome_before, outcome)
                if one.seq == believed.leaf:
                    body = body.replace(believed.commitment, commitment(believed.salt, dossier).encode())
                name, found, rest = body.partition(b'"evidence_index":')
                if found:
                    index, comma, rest = rest.partition(b",")
                    body = b"%b%b%d%b%b" % (name, found, int(index) + further, comma, rest)
                writing.append_bytes(body, TENANT, contract, one.contract_seq)
            writing.insert(
                tables.governance_checks,
                tenant=TENANT,
                outcome_id=outcome.decode(),
                version=1,
                disposition=believed.disposition,
                at=believed.at,
                leaf=believed.leaf + further,
                salt=believed.salt,
                body=dossier,
            )
        writing.outcomes += len(numbers)
        writing.events += len(numbers) * first.events
        of_contracts = tables.agent_histories.c.kind == HistoryKind.CONTRACT
        writing.change(update(tables.agent_histories).where(of_contracts).values(body=memory.to_json()))

    return write


def _copy_rows(location: Location, first: _First, count: int) -> None:
    multiplied = [one.format(count=count + 1) for one in _MULTIPLIED]
    if location.url is None:
        connection = sqlite3.connect(location.folder / FILE, isolation_level=None)
        # Nothing else reads it meanwhile, and a write-ahead log would take as much room again.
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for table in _COPIES:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(_copying(table, names, first, count, "printf('%034d', n.i)"))
        for one in multiplied:
            connection.execute(one)
        connection.execute("COMMIT")
        connection.execute("ANALYZE")
        connection.close()
        return
    with psycopg.connect(location.url, autocommit=True) as opened:
        for table in _COPIES:
            names = [column.name for column in opened.execute(f"SELECT * FROM {table} LIMIT 0").description or ()]
            opened.execute(_copying(table, names, first, count, "lpad(n.i::text, 34, '0')").encode())
        for one in multiplied:
            opened.execute(one.encode())
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
