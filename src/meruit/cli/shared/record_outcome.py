"""Judge work on the command line and record the outcome."""

from collections.abc import Mapping
from typing import Any

from meruit.app import open_store
from meruit.cli.terminal import StoreAddress, note
from meruit.config import location_of
from meruit.errors import MeruitError
from meruit.model.access import TENANT
from meruit.model.outcome import Labels
from meruit.model.verdict import VerificationResult
from meruit.outcomes.service import Registrar, Submission
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

# Any: work is the JSON that the agent received and returned.
Payload = Mapping[str, Any]


def verify_and_record(
    engine: VerificationEngine,
    criteria: CompiledCriteria,
    work: tuple[Payload, Payload, Payload],
    place: StoreAddress,
    *,
    contract_id: str | None,
    agent_id: str | None,
) -> VerificationResult:
    """Judge input, output and metadata; the outcome is durable when this returns."""
    if not TENANT.fullmatch(place.tenant):
        raise MeruitError(f"{place.tenant!r} is not a valid tenant: use a-z, 0-9, - and _, at most 63 characters")
    location = location_of(place.data, place.database_url)
    store = open_store(location, make=True)
    try:
        registrar = Registrar(engine, store)
        judged = registrar.judge_sync(
            criteria, Submission(*work, labels=Labels(contract_id=contract_id, agent_id=agent_id)), place.tenant
        )
        recorded = registrar.record_sync(place.tenant, judged)
    finally:
        store.close()
    note(f"recorded as {recorded.outcome_id} in {location.display_name}")
    return judged.as_recorded(recorded).result
