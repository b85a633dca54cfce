"""Read one recorded outcome back, with the work and every result."""

from meruit.model.access import DEFAULT_TENANT, Scope
from meruit.model.outcome import OutcomeRecord
from meruit.outcomes.store import read
from meruit.store.store import Store


def read_outcome(store: Store, outcome_id: str, *, tenant: str = DEFAULT_TENANT) -> OutcomeRecord:
    """Read a recorded outcome; raises NotFound."""
    with store.database.reading() as connection:
        return read.full_record(connection, Scope(tenant), outcome_id, store.blobs)
