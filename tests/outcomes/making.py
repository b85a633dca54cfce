"""What the tests of stores record, and the way they hand several callers to the recorder at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from meruit import SuccessCriteria, VerificationEngine
from meruit.log.merkle import EMPTY_ROOT, node_hash
from meruit.model.canonical import canonical, payload_bytes
from meruit.model.outcome import Labels
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store.together import RecordTogether
from meruit.outcomes.store.write import NewOutcome, RecordAll, RecordedVersion
from meruit.store.idempotency import IdempotentRequest, IdempotentWrite
from meruit.store.recorder import Write, _Answer, _QueuedWrite
from meruit.store.store import Store

ENGINE = VerificationEngine()
MANY_DIGITS = Decimal("0.12345678901234567890123456789")
ANSWER_S = 60.0


def criteria_of(threshold: float | Decimal = 0.5, **more: Any) -> SuccessCriteria:
    """Criteria that no other threshold gives."""
    one = {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": threshold, **more}
    return SuccessCriteria.model_validate({"criteria": [one]})


def body_of(criteria: SuccessCriteria) -> bytes:
    """Criteria as they are kept."""
    return canonical(criteria.model_dump(exclude_defaults=True))


CRITERIA = criteria_of()


def outcome(  # each part can be the one that a test is about
    store: Store,
    tenant: str = "acme",
    *,
    labels: Labels = Labels(),  # noqa: B008 - frozen
    criteria: SuccessCriteria = CRITERIA,
    work_input: Mapping[str, Any] | None = None,
    work_output: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    outcome_id: str | None = None,
    moment: datetime | None = None,
) -> NewOutcome:
    """Work that was judged, ready to be recorded."""
    works = (
        {"reference": "the cat sat"} if work_input is None else work_input,
        {"text": "the cat"} if work_output is None else work_output,
        {"duration_ms": 12} if metadata is None else metadata,
    )
    result = ENGINE.verify_sync("c", works[0], works[1], criteria, works[2])
    if moment is not None:
        result = msgspec.structs.replace(result, verified_at=moment)
    given, done, measured = (store.blobs.part(tenant, written(work)) for work in works)
    chosen = store.surroundings.new_id("out") if outcome_id is None else outcome_id
    salts = store.surroundings.entropy(64)
    return NewOutcome(tenant, chosen, labels, given, done, measured, body_of(criteria), result, salts)


def written(work: Mapping[str, Any]) -> bytes:
    """A part of the work as it is kept."""
    found = payload_bytes(work)
    assert found is not None
    return found


def judged(criteria: SuccessCriteria, text: str = "the cat sat") -> VerificationResult:
    """Another verdict on the usual work."""
    return ENGINE.verify_sync("c", {"reference": "the cat sat"}, {"text": text}, criteria, {"duration_ms": 12})


def recorded(store: Store, *outcomes: NewOutcome) -> list[RecordedVersion]:
    """Record them as one request; where they stand."""
    return store.recorder.write(RecordAll("", outcomes))


# Any: what it returns depends on whether the key was used before.
def record(
    outcomes: Sequence[NewOutcome],
    request: IdempotentRequest | None = None,
    tenant: str = "",
    reply: bytes = b"",
    *,
    in_segment: bool = False,
) -> Write[Any]:
    """The write that records outcomes, with an idempotency key if a request is given."""
    if request is None:
        return RecordAll(tenant, tuple(outcomes))
    kind = RecordTogether if in_segment else RecordAll
    write = kind(tenant, tuple(outcomes), idempotency_key=request.key)
    return IdempotentWrite(tenant, request, write, lambda _: reply)


# Any: each write has an answer of its own kind.
def together(store: Store, writes: Sequence[Write[Any]]) -> list[Any]:
    """What callers that share one transaction are answered; what one is refused with stands in its place."""
    answers = [_Answer() for _ in writes]
    # The recorder takes nobody while this is held, then all of them.
    with store.recorder._work:
        for write, answer in zip(writes, answers, strict=True):
            store.recorder._put(_QueuedWrite(write, answer, None, sign_now=False))
    assert all(answer.given.wait(ANSWER_S) for answer in answers)
    return [answer.result for answer in answers]


def naive_root(hashes: Sequence[bytes]) -> bytes:
    """The root of RFC 6962, section 2.1, word for word."""
    if not hashes:
        return EMPTY_ROOT
    if len(hashes) == 1:
        return hashes[0]
    half = 1 << (len(hashes) - 1).bit_length() - 1
    return node_hash(naive_root(hashes[:half]), naive_root(hashes[half:]))
