"""Events for subscribers: delivered at least once, and in order for each subject."""

from enum import StrEnum
from typing import Any

from meruit.model.record import Record

SCHEMA_VERSION = "1"
SOURCE = "meruit"


class EventType(StrEnum):
    """The type of an event."""

    OUTCOME_RECORDED = "outcome.recorded"
    OUTCOME_RESCORED = "outcome.rescored"
    OUTCOMES_RECORDED = "outcomes.recorded"
    OUTCOMES_RESCORED = "outcomes.rescored"
    OUTCOME_ERASED = "outcome.erased"
    CRITERIA_REGISTERED = "criteria.registered"
    WORK_SUBMITTED = "work.submitted"
    CONTRACT_AWARDED = "contract.awarded"
    CONTRACT_STARTED = "contract.started"
    CONTRACT_COMPLETED = "contract.completed"
    CONTRACT_HELD = "contract.held"
    CONTRACT_RELEASED = "contract.released"
    CONTRACT_VERIFIED = "contract.verified"
    CONTRACT_FAILED = "contract.failed"
    CONTRACT_SETTLED = "contract.settled"
    CONTRACT_REVERSED = "contract.reversed"
    CONTRACT_DISPUTED = "contract.disputed"
    CONTRACT_RESOLVED = "contract.resolved"
    CONTRACT_EXPIRED = "contract.expired"
    CONTRACT_VOIDED = "contract.voided"
    BENCHMARK_PUBLISHED = "benchmark.published"
    BENCHMARK_DELETED = "benchmark.deleted"
    BENCHMARK_RUN_CREATED = "benchmark_run.created"
    BENCHMARK_RUN_ENDED = "benchmark_run.ended"
    BENCHMARK_PRACTISED = "benchmark.practised"
    TASK_RUN_CREATED = "task_run.created"
    TASK_RUN_STARTED = "task_run.started"
    TASK_RUN_REQUEUED = "task_run.requeued"
    TASK_RUN_COMPLETED = "task_run.completed"
    TASK_RUN_RECHECKED = "task_run.rechecked"
    TASK_RUN_TIMED_OUT = "task_run.timed_out"
    TASK_RUN_CANCELLED = "task_run.cancelled"
    AGENT_RUN_QUEUED = "agent_run.queued"
    AGENT_RUN_STARTED = "agent_run.started"
    AGENT_RUN_WAITING = "agent_run.waiting"
    AGENT_RUN_RESUMED = "agent_run.resumed"
    AGENT_RUN_COMPLETED = "agent_run.completed"
    AGENT_RUN_FAILED = "agent_run.failed"
    AGENT_RUN_CANCELLED = "agent_run.cancelled"
    # The verifier's protocol spells these with underscores.
    VERIFICATION_STARTED = "verification_started"
    VERIFICATION_PASSED = "verification_passed"
    VERIFICATION_REJECTED = "verification_rejected"
    VERIFICATION_ATTEMPT_COUNTED = "verification_attempt_counted"
    VERIFICATION_EXHAUSTED = "verification_exhausted"
    USAGE_RUN_RECORDED = "usage_run.recorded"
    USAGE_RUN_ENDED = "usage_run.ended"
    USAGE_VERIFIED = "usage.verified"
    USAGE_WITHDRAWN = "usage.withdrawn"
    USAGE_WARNING = "usage.warning"
    USAGE_UNAVAILABLE = "usage.unavailable"
    USAGE_ACKNOWLEDGED = "usage.acknowledged"
    EVALUATION_STARTED = "evaluation.started"
    EVALUATION_SEGMENT_RECORDED = "evaluation.segment_recorded"
    EVALUATION_FINISHED = "evaluation.finished"
    REVIEW_CREATED = "review.created"
    REVIEW_LABELLED = "review.labelled"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"


class Event(Record, frozen=True):
    """The envelope; `data` holds names and verdicts, never payloads or secrets."""

    event_id: str
    event_type: str
    schema_version: str
    idempotency_key: str
    """The same for every delivery of one event, so that a consumer can recognise a repeated one."""
    timestamp: str
    source: str
    tenant_id: str
    data: dict[str, Any]


class OutboxEvent(Record, frozen=True):
    """An event and its position in the outbox."""

    seq: int
    subject: str
    """What it is about; events of one subject keep their order."""
    event: Event
