"""The audit log, signed as it stands: each second at most, whoever asks."""

import time
from collections.abc import Callable

from meruit.model.outcome import in_micros
from meruit.stores import audit
from meruit.stores.audit import SignedCheckpoint
from meruit.stores.database import StoreError
from meruit.stores.store import Store
from meruit.stores.writing import CHECKPOINT_EVERY_MICROS


def checkpoint(
    store: Store, covering: int | None = None, sleep: Callable[[float], None] = time.sleep
) -> SignedCheckpoint:
    """A signed checkpoint of at least that many entries, or of all; signed now where there is none."""
    with store.database.reading() as connection:
        size = audit.log_size(connection) if covering is None else covering
        found = audit.checkpoint_covering(connection, size)
        if found is not None:
            return found
        wait = CHECKPOINT_EVERY_MICROS - audit.checkpoint_age_micros(connection, in_micros(store.surroundings.clock()))
    if wait > 0:
        sleep(min(wait, CHECKPOINT_EVERY_MICROS) / 1_000_000)
    store.recorder.write(audit.nothing, sign_now=True)
    with store.database.reading() as connection:
        found = audit.checkpoint_covering(connection, size)
    if found is None:
        raise StoreError(f"the audit log has fewer than {size} entries")
    return found
