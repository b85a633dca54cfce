"""What other packages may use of stored agent runs and submissions. Tables and SQL are in store."""

from meruit.gate.store.read import (
    LiveWorker,
    candidate,
    count_by_state,
    count_by_status,
    count_stuck,
    find,
    find_verdict,
    live_workers,
    members,
    page,
    page_sorted,
    steps,
    submissions,
)
from meruit.gate.store.runs import (
    MEMBERS,
    WAIT,
    CancelRun,
    QueueRun,
    ResumeRun,
)
from meruit.gate.store.submissions import DEFERRED, DeferredCandidate, commitment_content

__all__ = [
    "DEFERRED",
    "MEMBERS",
    "WAIT",
    "CancelRun",
    "DeferredCandidate",
    "LiveWorker",
    "QueueRun",
    "ResumeRun",
    "candidate",
    "commitment_content",
    "count_by_state",
    "count_by_status",
    "count_stuck",
    "find",
    "find_verdict",
    "live_workers",
    "members",
    "page",
    "page_sorted",
    "steps",
    "submissions",
]
