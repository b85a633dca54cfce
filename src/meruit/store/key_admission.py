"""The keys that may sign the log, as the database keeps them."""

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from meruit.log.entries import KeyEntry, read_entry
from meruit.log.key_chain import KeyChain
from meruit.store import tables
from meruit.store.database import fetch
from meruit.store.transaction import WriteTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meruit.store.driver import DriverConnection
_KEYS = (
    "SELECT log_leaves.seq, log_leaves.body FROM log_leaves JOIN log_keys ON log_keys.seq = log_leaves.seq "
    "ORDER BY log_leaves.seq"
)


def read_key_chain(connection: "Connection | DriverConnection", origin: str) -> KeyChain:
    """The chain of keys from the entries of the log; an entry that does not follow from it admits nothing."""
    chain = KeyChain(origin)
    for seq, body in fetch_key_leaves(connection):
        add_key(chain, seq, body)
    return chain


def fetch_key_leaves(connection: "Connection | DriverConnection") -> list[tuple[int, bytes]]:
    """The entries about keys, as they stand in the log."""
    return [(int(seq), bytes(body)) for seq, body in fetch(connection, _KEYS)]


def add_key(chain: KeyChain, seq: int, body: bytes) -> None:
    """Follow one entry about a key; nothing for one that cannot be read or is not admitted."""
    with suppress(msgspec.DecodeError):
        entry = read_entry(body)
        if isinstance(entry, KeyEntry):
            chain.admit(seq, entry)


def insert_key(writing: WriteTransaction, entry: KeyEntry) -> None:
    """Append an entry that admits a key, and its row."""
    index = writing.append(entry)
    writing.has_key_entry = True
    writing.is_shared = writing.is_shared or bool(entry.by)
    writing.insert(tables.log_keys, vkey=entry.vkey, seq=index, at=writing.now.micros)
