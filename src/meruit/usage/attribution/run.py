"""The part of a usage run that attribution needs; the same shape from the database row to the observation."""

from typing import NamedTuple


class AttributionRun(NamedTuple):
    """One run of an account, reduced to what decides which tokens are its own; times in microseconds since 1970.

    The fields are named after the columns of `usage_runs`, in the order in which they are selected.
    """

    id: str
    seq: int
    attribution_kind: str
    """The value of an `AttributionKind`."""
    attribution_key: str
    started_at: int | None
    """None where it is not known: the run then counts as a moment, at its end."""
    ended_at: int | None
    """None while the run is open: it overlaps with everything after its start."""
    local_input: int | None
    local_output: int | None
    local_requests: int | None
    last_input: int | None
    """The count of the last successful observation; None before the first."""
    last_output: int | None
    last_requests: int | None
    next_observation_at: int | None
    status: str = ""
