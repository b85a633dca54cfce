"""How far an agent can be trusted: the share of its decided work that it delivered, with an exact interval.

A pure function of counts of recorded work. Nothing is set by hand, nothing is assumed about an agent without records,
and what was not the agent's fault does not count. All work weighs the same, however old it is.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from fractions import Fraction

import msgspec

from meruit.governance.binomial import CONFIDENCE, clopper_pearson
from meruit.model.contract import ContractState, Escrow
from meruit.model.record import Record
from meruit.model.verdict import Verdict

METHOD, METHOD_VERSION = "delivered_share", 1
"""A change of what counts, or of how it is computed, is another version."""
FEW = 20
"""With fewer decided works than this, a score says little."""


class WorkEnd(StrEnum):
    """How one piece of work ended, as far as its agent is responsible for it."""

    DELIVERED = "delivered"
    """Judged a success."""
    NOT_DELIVERED = "not_delivered"
    """Judged no success; or started and not handed in before its deadline; or cancelled by a person after governance
    had rejected it."""
    OPEN = "open"
    """Not handed in yet."""
    WAITING = "waiting"
    """Held, or its payment was reversed: a person or a new verdict decides."""
    DISPUTED = "disputed"
    DOUBTED = "doubted"
    """Governance objects, and no person has decided."""
    INCONCLUSIVE = "inconclusive"
    """A missing measurement could still change the verdict."""
    ERROR = "error"
    """Nothing could be judged."""
    NO_CRITERIA = "no_criteria"
    """Nothing was agreed by which it could be judged."""
    CANCELLED = "cancelled"
    """Cancelled by an operator although its verdict was a success, or before it was handed in."""
    NEVER_STARTED = "never_started"
    """Awarded, and expired before the agent started: it may never have agreed."""
    SELF_SUBMITTED = "self_submitted"
    """Handed in by the agent without a contract: it could choose easy criteria and try often."""
    BENCHMARK = "benchmark"
    """A task run of a benchmark: a test, not a delivery."""


COUNTED = (WorkEnd.DELIVERED, WorkEnd.NOT_DELIVERED)
LEFT_OUT = tuple(end for end in WorkEnd if end not in COUNTED)


class WorkFacts(msgspec.Struct, frozen=True):
    """What is recorded about one piece of work."""

    verdict: Verdict | None = None
    """The latest by its own criteria; None where nothing was handed in."""
    success: bool = False
    state: ContractState | None = None
    """None without a contract."""
    escrow: Escrow | None = None
    started: bool = False
    by_agent: bool = False
    is_benchmark: bool = False
    objected: bool = False
    """Whether governance held or rejected it."""
    rejected: bool = False
    """Whether governance rejected it."""
    has_criteria: bool = True


_BY_STATE = {
    ContractState.AWARDED: WorkEnd.OPEN,
    ContractState.EXECUTING: WorkEnd.OPEN,
    ContractState.VERIFICATION_PENDING: WorkEnd.WAITING,
    ContractState.DISPUTED: WorkEnd.DISPUTED,
}
_UNDECIDED = {
    None: WorkEnd.CANCELLED,
    Verdict.INCONCLUSIVE: WorkEnd.INCONCLUSIVE,
    Verdict.ERROR: WorkEnd.ERROR,
}


def classify_work(facts: WorkFacts) -> WorkEnd:
    """Decide how one piece of work counts."""
    if facts.is_benchmark:
        return WorkEnd.BENCHMARK
    if facts.by_agent:
        return WorkEnd.SELF_SUBMITTED
    if facts.state is ContractState.EXPIRED:
        return WorkEnd.NOT_DELIVERED if facts.started else WorkEnd.NEVER_STARTED
    if facts.state in _BY_STATE:
        return _BY_STATE[facts.state]
    return _classify_verdict(facts)


def _classify_verdict(facts: WorkFacts) -> WorkEnd:
    cancelled = facts.escrow is Escrow.RELEASED
    if cancelled and facts.rejected:
        return WorkEnd.NOT_DELIVERED
    if facts.verdict is not None and not facts.has_criteria:
        return WorkEnd.NO_CRITERIA
    if facts.verdict in _UNDECIDED:
        return _UNDECIDED[facts.verdict]
    if facts.success or facts.verdict is Verdict.PASS:
        if cancelled:
            return WorkEnd.CANCELLED
        # A passing verdict is not a success only where governance objects.
        return WorkEnd.DELIVERED if facts.success else WorkEnd.DOUBTED
    return WorkEnd.DOUBTED if facts.objected else WorkEnd.NOT_DELIVERED


class TrustInterval(Record, frozen=True):
    """Between which shares the agent's true rate of delivery lies, with the confidence given."""

    low: float
    high: float
    confidence: float = CONFIDENCE


class TrustInputs(Record, frozen=True):
    """What the score was computed from."""

    delivered: int
    not_delivered: int
    left_out: dict[str, int]
    """Work that does not count, by the reason."""

    @property
    def total(self) -> int:
        """Decided works."""
        return self.delivered + self.not_delivered


class TrustRecords(StrEnum):
    """Whether there is enough to go by."""

    NONE = "none"
    FEW = "few"
    ENOUGH = "enough"


class TrustMethod(Record, frozen=True):
    """How the score was computed, so that anyone can do it again."""

    name: str = METHOD
    version: int = METHOD_VERSION
    score: str = "delivered / (delivered + not_delivered)"
    interval: str = "Clopper-Pearson"
    weights: str = "equal, for any age, amount and consumer"


class TrustScore(Record, frozen=True):
    """How far an agent can be trusted to deliver, computed from its recorded work."""

    agent_id: str
    score: float | None
    """The share of decided work that was delivered; None where none is decided."""
    exact: str | None
    """The same as a fraction: `9/10`."""
    interval: TrustInterval
    records: TrustRecords
    few_below: int
    """Fewer decided works than this are few."""
    inputs: TrustInputs
    since: datetime | None
    until: datetime | None
    method: TrustMethod


def compute_trust(
    agent_id: str, ends: Mapping[WorkEnd, int], since: datetime | None = None, until: datetime | None = None
) -> TrustScore:
    """Compute the score of an agent from how its work ended; equal counts give an equal score."""
    delivered, not_delivered = (ends.get(end, 0) for end in COUNTED)
    counted = delivered + not_delivered
    share = Fraction(delivered, counted) if counted else None
    records = TrustRecords.ENOUGH if counted >= FEW else TrustRecords.FEW if counted else TrustRecords.NONE
    return TrustScore(
        agent_id=agent_id,
        score=None if share is None else float(share),
        exact=None if share is None else f"{delivered}/{counted}",
        interval=TrustInterval(*clopper_pearson(delivered, counted)),
        records=records,
        few_below=FEW,
        inputs=TrustInputs(delivered, not_delivered, {str(end): ends.get(end, 0) for end in LEFT_OUT}),
        since=since,
        until=until,
        method=TrustMethod(),
    )
