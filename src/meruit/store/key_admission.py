"""The keys that may sign the log, as the database keeps them."""

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
    for seq, body in fetch(connection, _KEYS):
        try:
            entry = read_entry(bytes(body))
        except msgspec.DecodeError:
            continue
        if isinstance(entry, KeyEntry):
            chain.admit(seq, entry)
    return chain


def insert_key(writing: WriteTransaction, entry: KeyEntry) -> None:
    """Append an entry that admits a key, and its row."""
    index = writing.append(entry)
    writing.insert(tables.log_keys, vkey=entry.vkey, seq=index, at=writing.now.micros)
