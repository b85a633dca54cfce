"""The keys that may sign the log, as the database keeps them."""

import msgspec
from sqlalchemy import Connection, select

from meruit.log.entries import KeyEntry, read_entry
from meruit.log.key_chain import KeyChain
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


def read_key_chain(connection: Connection, origin: str) -> KeyChain:
    """The chain of keys from the entries of the log; an entry that does not follow from it admits nothing."""
    chain = KeyChain(origin)
    leaves, keys = tables.log_leaves, tables.log_keys
    query = select(leaves.c.seq, leaves.c.body).join(keys, keys.c.seq == leaves.c.seq).order_by(leaves.c.seq)
    for row in connection.execute(query):
        try:
            entry = read_entry(bytes(row.body))
        except msgspec.DecodeError:
            continue
        if isinstance(entry, KeyEntry):
            chain.admit(row.seq, entry)
    return chain


def insert_key(writing: WriteTransaction, entry: KeyEntry) -> None:
    """Append an entry that admits a key, and its row."""
    index = writing.append(entry)
    writing.insert(tables.log_keys, vkey=entry.vkey, seq=index, at=writing.now.micros)
