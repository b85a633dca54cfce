"""Tokens: what a run reports, what its provider counted, and the verdict on both."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from meruit.errors import FetchError
from meruit.model.chat import MOST_TOKENS
from meruit.model.record import Record

INTERVAL_MIN = 60.0
"""Default minutes between two equal observations."""
LONGEST_MIN = 10_000 * 366 * 24 * 60.0
"""Longer than the calendar; a longer interval makes no difference."""

BY_FILE, BY_FILE_ACCOUNT = "file", "file account"
"""`reported_by` of observations: from a file that was recorded, and from an account that reads files."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""With a time zone: without one, the distance between two times is not known."""


class UsageStatus(StrEnum):
    """Whether a run's tokens are verified."""

    PENDING = "pending"
    WARNING = "warning"
    VERIFIED = "verified"
    DATA_NOT_AVAILABLE = "data_not_available"


class UsageCode(StrEnum):
    """The rule that decided; where several apply, the first in this order."""

    CONFLICTING_EVIDENCE = "conflicting_evidence"
    RUN_OPEN = "run_open"
    NOT_STARTED = "not_started"
    API_ERROR = "api_error"
    ZERO_TOKENS = "zero_tokens"
    DECREASED = "decreased"
    FIRST = "first"
    CHANGING = "changing"
    GAP = "gap"
    UNDECLARED_USAGE = "undeclared_usage"
    INCOMPLETE = "incomplete"
    UNATTRIBUTED = "unattributed"
    MODEL_MISMATCH = "model_mismatch"
    AMBIGUOUS_ATTRIBUTION = "ambiguous_attribution"
    DISCREPANCY = "discrepancy"
    LOCAL_ONLY = "local_only"
    STABLE = "stable"


class Assurance(StrEnum):
    """How closely the provider's count belongs to the run."""

    REQUEST = "A"
    """The provider has a record of each call."""
    ATTRIBUTION_KEY = "B"
    """The run alone used a key, a project or a session for its minutes."""
    COHORT = "C"
    """Several runs share an attribution key, and their sum ties out."""
    LOCAL = "D"
    """Only the run's own count; never verified."""


class Anchor(StrEnum):
    """From which observation the interval counts."""

    LAST_PAIR = "last_pair"
    """From the observation before the last one (the default)."""
    SPAN = "span"
    """From the first of the equal observations."""


class Tokens(Record, frozen=True):
    """Counts of one source. Input includes cached tokens, output includes reasoning tokens; None means unknown."""

    input: Count = 0
    output: Count = 0
    requests: Count | None = None
    cached: Count | None = None
    cache_write: Count | None = None
    reasoning: Count | None = None

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input + self.output


def sum_tokens(several: Iterable[Tokens]) -> Tokens:
    """Sum the counts; a count that is unknown in one of them is unknown in the sum."""
    together: list[int | None] | None = None
    for one in several:
        parts = (one.input, one.output, one.requests, one.cached, one.cache_write, one.reasoning)
        if together is None:
            together = [*parts]
        else:
            together = [
                None if a is None or b is None else min(a + b, MOST_TOKENS)
                for a, b in zip(together, parts, strict=True)
            ]
    if together is None:
        return Tokens(0, 0, 0, 0, 0, 0)
    return Tokens(together[0] or 0, together[1] or 0, *together[2:])


class UsageStep(Record, frozen=True):
    """One step of a run, as the run declares it."""

    id: str
    expects_usage: bool | None = None
    """False where the step was declared beforehand to use no model; None where nothing was declared."""
    succeeded: bool | None = None
    local: Tokens | None = None
    """The counts in the responses; None where a response has none."""
    models: tuple[str, ...] = ()
    by_model: dict[str, Tokens] = msgspec.field(default_factory=dict)
    """The same by model, where every response names its model."""


class UsageRun(Record, frozen=True):
    """The part of a run that the verdict depends on."""

    ended_at: Moment | None = None
    """None while it is open."""
    steps: tuple[UsageStep, ...] = ()
    declares_no_usage: bool = False

    @property
    def uses_none(self) -> bool:
        """Whether the run, or each of its steps, was declared to use no model."""
        return self.declares_no_usage or (bool(self.steps) and all(one.expects_usage is False for one in self.steps))

    @property
    def local(self) -> Tokens | None:
        """The sum of all steps; None where a step that may have used tokens has no count. Zero if none is declared."""
        counts = [one.local for one in self.steps if one.local is not None or one.expects_usage is not False]
        known = [one for one in counts if one is not None]
        return sum_tokens(known) if len(known) == len(counts) and (counts or self.uses_none) else None

    @property
    def by_model(self) -> dict[str, Tokens] | None:
        """The same by model; None where a step with tokens does not name its models."""
        if self.local is None or any(one.local and one.local.total and not one.by_model for one in self.steps):
            return None
        found: dict[str, list[Tokens]] = {}
        for step in self.steps:
            for model, tokens in step.by_model.items():
                found.setdefault(model, []).append(tokens)
        return {model: sum_tokens(several) for model, several in found.items()}


class Cohort(Record, frozen=True):
    """Runs that share an attribution key, so that the provider counts them together."""

    runs: Count
    local: Tokens | None = None
    """The sum of their own counts; None where one of them has none."""
    models: tuple[str, ...] = ()
    has_open: bool = False
    """Whether one of them has not ended, and may still use more."""


class Observation(Record, frozen=True):
    """One observation of the provider's count."""

    id: str
    at: Moment
    """By the provider's clock, where the response has a date."""
    total: Tokens | None = None
    """None where the observation failed."""
    steps: dict[str, Tokens] | None = None
    """By step, where the source counts by step."""
    steps_with_tokens: Count | None = None
    total_steps: Count | None = None
    """The number of steps, as files give it without their names."""
    unattributed: Count = 0
    """Tokens of the run's attribution key outside of all its steps."""
    models: tuple[str, ...] = ()
    cohort: Cohort | None = None
    """The runs that `total` counts, where this one is not alone."""
    assurance: Assurance = Assurance.COHORT
    watermark: Moment | None = None
    """The time up to which the provider has counted."""
    error: FetchError | None = None
    detail: str = ""
    """What went wrong, in the provider's words."""
    digest: str = ""
    """Digest of the pages that the observation was read from."""
    by_model: dict[str, Tokens] | None = None
    """The same total by model; None where the source does not count by model."""
    reported_by: str = ""
    """Where the observation was imported instead of requested from the provider: `file`, `file account`."""
    early: bool = False
    """Whether it was recorded as equal to the one before and too soon after it: it then makes no pair."""


class UsagePolicy(Record, frozen=True):
    """How strict the decision is."""

    interval_min: Annotated[float, msgspec.Meta(ge=0)] = INTERVAL_MIN
    anchor: Anchor = Anchor.LAST_PAIR
    min_stable_pairs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    totals_only: bool = False
    """Whether only input and output are compared, not their parts."""
    tolerance: Count = 0
    """Tokens by which the run's own count may differ from the provider's."""
    anomaly_is_permanent: bool = False
    """Whether a run whose count fell stays unverified, also when the count recovers, until a person accepts it."""

    @property
    def interval(self) -> timedelta:
        """The least time between two equal observations that verify a run."""
        return timedelta(minutes=min(LONGEST_MIN, self.interval_min))


class Acknowledgement(Record, frozen=True):
    """A person accepts a count that fell."""

    at: Moment
    by: str
    reason: str


class UsageChange(Record, frozen=True):
    """A change of status or code, and the observation that caused it."""

    at: Moment
    status: UsageStatus
    code: UsageCode
    observation_id: str = ""
    """Empty where an acknowledgement caused the change."""


class UsageVerdict(Record, frozen=True):
    """What may be claimed of a run's tokens, by which rule, on which observations."""

    status: UsageStatus
    code: UsageCode
    message: str
    """One sentence for people."""
    explanation: str
    """Why the rule applies, and what would change the verdict."""
    assurance: Assurance
    tokens: Tokens | None = None
    """The run's last count; None where there is none."""
    steps_with_tokens: int = 0
    total_steps: int = 0
    empty_steps: tuple[str, ...] = ()
    minutes: float | None = None
    """Between the two observations that were compared."""
    compared: tuple[str, ...] = ()
    """The ids of the observations that decided."""
    withdrawn: int = 0
    """How often `verified` was withdrawn."""
    held: bool = False
    """Whether the latest observation failed, so that the status before it is kept."""
    interval_min: float = INTERVAL_MIN
    """The interval of the policy; less than 60 is weaker than the default."""
    reported_by: str = ""
    """Where an observation that decided was imported: `file`, `file account`."""
    history: tuple[UsageChange, ...] = ()
    early: int = 0
    """How many equal observations came too early to count."""
    by_model: dict[str, Tokens] | None = None
    """The tokens by model, as the provider names them, where the run itself names no model."""

    @property
    def is_imported(self) -> bool:
        """Whether it rests on what a file says, so that the provider was not asked."""
        return bool(self.reported_by)
