"""Tokens: what a run used by its own account, what its provider counted, and what may be claimed of both."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from meruit.errors import FetchError
from meruit.model.chat import MOST_TOKENS
from meruit.model.record import Record

INTERVAL_MIN = 60.0
"""Minutes between two equal looks, as specified."""
LONGEST_MIN = 10_000 * 366 * 24 * 60.0
"""Longer than any calendar; a longer interval cannot be told."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""With its time zone: nobody can say how far apart two times are that lack one."""


class UsageStatus(StrEnum):
    """Whether a run's tokens may be believed."""

    PENDING = "pending"
    WARNING = "warning"
    VERIFIED = "verified"
    DATA_NOT_AVAILABLE = "data_not_available"


class UsageCode(StrEnum):
    """The rule that decided; of several that apply, the one that stands first here."""

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
    """A record for each very call."""
    ATTRIBUTION_KEY = "B"
    """The run alone used a key, a project or a session for its minutes."""
    COHORT = "C"
    """Several runs share an attribution key, and their sum ties out."""
    LOCAL = "D"
    """Only what the run says of itself; never verified."""


class Anchor(StrEnum):
    """From where the interval counts."""

    LAST_PAIR = "last_pair"
    """Between the last two looks, as specified."""
    SPAN = "span"
    """From the first of the looks that are equal."""


class Tokens(Record, frozen=True):
    """Counts of one source. Input includes what was cached, output what was reasoned; None is unknown, and never 0."""

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
    """All together; what one of them does not know is not known of the sum."""
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
    """False where it was declared beforehand to use no model; None where nobody said."""
    succeeded: bool | None = None
    local: Tokens | None = None
    """What the responses themselves said; None where any of them did not."""
    models: tuple[str, ...] = ()
    by_model: dict[str, Tokens] = msgspec.field(default_factory=dict)
    """The same by model, where every response named its own."""


class UsageRun(Record, frozen=True):
    """A run whose tokens are to be believed, or not."""

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
        """What all steps say; None where one that may have used something does not. Who declares no usage says zero."""
        said = [one.local for one in self.steps if one.local is not None or one.expects_usage is not False]
        known = [one for one in said if one is not None]
        return sum_tokens(known) if len(known) == len(said) and (said or self.uses_none) else None

    @property
    def by_model(self) -> dict[str, Tokens] | None:
        """The same by model; None where a step that used something does not say of which."""
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
    """What they say of themselves altogether; None where one of them does not."""
    models: tuple[str, ...] = ()
    has_open: bool = False
    """Whether one of them has not ended, and may yet use more."""


class Observation(Record, frozen=True):
    """One look at what the provider counted."""

    id: str
    at: Moment
    """By the provider's clock, where it says."""
    total: Tokens | None = None
    """None where the look failed."""
    steps: dict[str, Tokens] | None = None
    """By step, where the source can tell them apart."""
    steps_with_tokens: Count | None = None
    total_steps: Count | None = None
    """As files count steps without telling which."""
    unattributed: Count = 0
    """Tokens in the run's attribution key and in none of its steps."""
    models: tuple[str, ...] = ()
    cohort: Cohort | None = None
    """The runs that `total` counts, where this one is not alone."""
    assurance: Assurance = Assurance.COHORT
    watermark: Moment | None = None
    """Up to when the provider says that it has counted."""
    error: FetchError | None = None
    detail: str = ""
    """What went wrong, in the provider's words."""
    digest: str = ""
    """Of the pages that it was read from."""
    by_model: dict[str, Tokens] | None = None
    """The same total by model, where the source can tell; of a file that does not, None."""
    reported_by: str = ""
    """Who says that this was seen, where we did not ask the provider ourselves: `file`."""


class UsagePolicy(Record, frozen=True):
    """How strict to be; the defaults are the specification's."""

    interval_min: Annotated[float, msgspec.Meta(ge=0)] = INTERVAL_MIN
    anchor: Anchor = Anchor.LAST_PAIR
    min_stable_pairs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    totals_only: bool = False
    """Whether only input and output are compared, and no split of them."""
    tolerance: Count = 0
    """Tokens by which the run's own count may differ from the provider's."""
    anomaly_is_permanent: bool = False
    """Whether a count that fell bars the run also when it comes back, until a person accepts it."""

    @property
    def interval(self) -> timedelta:
        """The time between two looks that prove that nothing moves any more."""
        return timedelta(minutes=min(LONGEST_MIN, self.interval_min))


class Acknowledgement(Record, frozen=True):
    """A person accepts a count that fell."""

    at: Moment
    by: str
    reason: str


class UsageChange(Record, frozen=True):
    """What was claimed from one look on."""

    at: Moment
    status: UsageStatus
    code: UsageCode
    observation_id: str = ""
    """Empty where a person's word made the change."""


class UsageVerdict(Record, frozen=True):
    """What may be claimed of a run's tokens, by which rule, on which looks."""

    status: UsageStatus
    code: UsageCode
    message: str
    """As the specification words it, where it does."""
    explanation: str
    """The rule in plain words, and what would change it."""
    assurance: Assurance
    tokens: Tokens | None = None
    """The run's count as it was last seen; None where nothing was."""
    steps_with_tokens: int = 0
    total_steps: int = 0
    empty_steps: tuple[str, ...] = ()
    minutes: float | None = None
    """Between the two looks that were compared."""
    compared: tuple[str, ...] = ()
    """The looks that decided."""
    withdrawn: int = 0
    """How often `verified` was taken back."""
    held: bool = False
    """Whether the latest look failed, and what stood before it stands."""
    interval_min: float = INTERVAL_MIN
    """By which it was judged: less than 60 is weaker than specified."""
    reported_by: str = ""
    """Who says so of a look that decided, where we did not ask the provider ourselves."""
    history: tuple[UsageChange, ...] = ()
