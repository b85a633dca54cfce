"""The audit log, signed as it stands: at most once a second."""

import time
from collections.abc import Callable

from meruit.errors import NoteError, StoreError
from meruit.log.merkle import Subtree, range_root
from meruit.log.note import Checkpoint, SigningKey, open_checkpoint, split_note
from meruit.model.time import to_micros
from meruit.store import log as audit
from meruit.store.log import SignedCheckpoint
from meruit.store.log_tiles import Tiles
from meruit.store.store import Store
from meruit.store.transaction import CHECKPOINT_EVERY_MICROS


def checkpoint(
    store: Store, covering: int | None = None, sleep: Callable[[float], None] = time.sleep
) -> SignedCheckpoint:
    """A checkpoint of at least that many entries, or of all, by this store's key; signed now where there is none."""
    store.require_admitted()
    with store.database.reading() as connection:
        size = audit.log_size(connection) if covering is None else covering
        age = audit.checkpoint_age_micros(connection, to_micros(store.surroundings.clock()))
    found = _covering(store, size)
    if found is None and 0 <= age < CHECKPOINT_EVERY_MICROS:
        sleep((CHECKPOINT_EVERY_MICROS - age) / 1_000_000)
        # Another thread that waited may have been quicker.
        found = _covering(store, size)
    if found is None:
        store.recorder.write(audit.write_nothing, sign_now=True)
        found = _covering(store, size)
    if found is None:
        raise StoreError(f"the audit log has fewer than {size} entries")
    return found


def find_witnessed_checkpoint(store: Store) -> SignedCheckpoint:
    """The newest checkpoint among those that most witnesses cosigned, by this store's key."""
    store.require_admitted()
    with store.database.reading() as connection:
        found = audit.best_witnessed(connection, 0)
        if found is not None:
            return checkpoint_signed_by(store.signer, found, Tiles(connection).subtree)
    return checkpoint(store)


def _covering(store: Store, size: int) -> SignedCheckpoint | None:
    with store.database.reading() as connection:
        found = audit.checkpoint_covering(connection, size)
        return None if found is None else checkpoint_signed_by(store.signer, found, Tiles(connection).subtree)


def checkpoint_signed_by(signer: SigningKey, found: SignedCheckpoint, subtree: Subtree) -> SignedCheckpoint:
    """The checkpoint as this key signs it; machines that share a database each have a key of their own."""
    try:
        open_checkpoint(found.note, signer.verifier)
    except NoteError:
        note = signer.sign(Checkpoint(signer.name, found.size, range_root(0, found.size, subtree)).text())
        text, signed = split_note(found.note)
        if split_note(note)[0] != text:
            raise StoreError(
                f"the checkpoint of {found.size} entries does not fit the audit log: "
                "the database was changed from outside; restore it from a copy"
            ) from None
        # Witnesses sign the text, and it is the same.
        return SignedCheckpoint(found.size, note + "".join(one.line() for one in signed if one.name != signer.name))
    return found
