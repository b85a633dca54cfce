"""Work judged on the command line, and kept."""

from collections.abc import Mapping
from typing import Any

from meruit.app import open_store
from meruit.cli.terminal import StoreAddress, note
from meruit.config import location_of
from meruit.errors import MeruitError
from meruit.model.criterion import SuccessCriteria
from meruit.model.outcome import Labels
from meruit.model.verdict import VerificationResult
from meruit.outcomes.service import Registrar, Submission
from meruit.store.keys import TENANT
from meruit.verify.engine import VerificationEngine

# Any: work is whatever JSON the agent was given and gave back.
Payload = Mapping[str, Any]


def verify_and_record(
    engine: VerificationEngine,
    criteria: SuccessCriteria,
    work: tuple[Payload, Payload, Payload],
    place: StoreAddress,
    *,
    contract_id: str | None,
    agent_id: str | None,
) -> VerificationResult:
    """The verdict on input, output and metadata, durable when this returns."""
    if not TENANT.fullmatch(place.tenant):
        raise MeruitError(f"{place.tenant!r} is no tenant: write a-z, 0-9, - and _, at most 63 characters")
    location = location_of(place.data, place.database_url)
    store = open_store(location, make=True)
    try:
        registrar = Registrar(engine, store)
        judged = registrar.judge_sync(
            registrar.compile(criteria), Submission(*work, labels=Labels(contract_id=contract_id, agent_id=agent_id))
        )
        recorded = registrar.record_sync(place.tenant, judged)
    finally:
        store.close()
    note(f"recorded as {recorded.outcome_id} in {location.display_name}")
    return judged.result
