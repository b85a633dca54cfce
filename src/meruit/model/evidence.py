"""Evidence: what was measured, before it is judged. Absence is a value with a reason."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from meruit.model.record import Record

Value = bool | int | float | str | list[Any]
"""The value of a metric."""


class Provenance(StrEnum):
    """Where a value comes from, and so how far it can be trusted."""

    OBSERVED = "observed"
    """Measured by the system that ran the work."""
    COMPUTED = "computed"
    """Computed by us from the work itself."""
    PROVIDER = "provider"
    """Counted by a third party."""
    CLAIMED = "claimed"
    """Claimed by the agent."""
    JUDGED = "judged"
    """Voted by model judges: testimony, not a measurement."""


class Fault(StrEnum):
    """Who is responsible that something was not measured or not met."""

    NONE = "none"
    AGENT = "agent"
    AUTHOR = "author"
    SYSTEM = "system"


class Cause(StrEnum):
    """Why a criterion could not be judged."""

    METRIC_MISSING = "metric_missing"
    """The work lacks what the metric needs."""
    UNKNOWN_METRIC = "unknown_metric"
    """No installed metric has that name."""
    METRIC_DISABLED = "metric_disabled"
    """The settings switch off what would compute it."""
    EXTRACTOR_ERROR = "extractor_error"
    """The metric's own code failed."""
    NOT_A_NUMBER = "not_a_number"
    """NaN or infinity."""
    WRONG_TYPE = "wrong_type"
    """The value is of a kind that the threshold cannot be compared with."""
    OUT_OF_DOMAIN = "out_of_domain"
    """The value is impossible for its type: a negative latency, a share above one."""
    AUTHOR_ERROR = "author_error"
    """The criterion asks for something that cannot be computed as written."""
    TOO_COSTLY = "too_costly"
    """Measuring would exceed a named limit."""
    CHECK_ERROR = "check_error"
    """A state check could not read its source, or gave an impossible score."""
    UNREAD_FORM = "unread_form"
    """What must be judged is in a form that is not read, such as text in a picture."""
    TIMEOUT = "timeout"
    """Custom code exceeded its time limit."""
    MEMORY = "memory"
    """Custom code exceeded its memory limit."""
    CRASHED = "crashed"
    """Custom code raised an exception, exited, or crashed its worker."""
    RESULT_REJECTED = "result_rejected"
    """Custom code returned something else than a few finite numbers, or not the required one."""
    UNSUPPORTED_CONSTRUCT = "unsupported_construct"
    """The tier that custom code is to run in cannot run what is written."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs of custom code on the same work differ."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """This machine, or its operator, does not run the custom code."""
    VOTES_DISAGREE = "votes_disagree"
    """Too few votes of a judge are equal."""
    VOTES_MISSING = "votes_missing"
    """Too few votes of a judge could be used: the others were refused, late, failed or unreadable."""


class Measured(Record, frozen=True):
    """A value with details about how it was measured."""

    value: Value
    details: Mapping[str, Any] | None = None
    provenance: Provenance | None = None
    """Only where it differs from what the metric usually has."""


class Missing(Record, frozen=True):
    """No value, and why."""

    why: str
    cause: Cause = Cause.METRIC_MISSING
    fault: Fault = Fault.AGENT
    details: Mapping[str, Any] | None = None
    """Details, where they are known."""


class Checked(Record, frozen=True):
    """The result of a state check: an exact score from 0 to 1."""

    score: str
    """A fraction between 0 and 1, as `2/3`."""
    details: Mapping[str, Any] | None = None
    fault: Fault = Fault.AGENT
    """Who is responsible for a score below 1."""


class Skipped(Record, frozen=True):
    """The criterion does not apply to this work; its weight leaves the mean."""

    why: str


Evidence = Value | Measured | Missing | Checked | Skipped
"""The evidence of one criterion. A bare value is the common case and costs nothing."""
