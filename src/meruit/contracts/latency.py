"""From when an agent's time counts, and how long it took. Pure, so that auditors compute the same."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from meruit.model.contract import Contract, LatencyBasis, LatencyFrom

AWARD, INPUT_READ, START = "award", "input_read", "start"
"""The events from which time can count."""
MEASURED_TIMES = ("duration_ms", "latency_basis", "observed_ms")
"""Metadata that the service measures of an agent's run."""
_MS = timedelta(milliseconds=1)


class ContractTimes(msgspec.Struct, frozen=True):
    """When an agent got its contract, was first given the input, and reported its start."""

    awarded_at: datetime
    input_read_at: datetime | None = None
    started_at: datetime | None = None


def times_of(contract: Contract) -> ContractTimes:
    """The times of a contract before its output."""
    return ContractTimes(
        awarded_at=contract.awarded_at, input_read_at=contract.input_read_at, started_at=contract.started_at
    )


def find_latency_basis(times: ContractTimes, latency_from: LatencyFrom) -> LatencyBasis:
    """From when the agent's time counts; from the award where the event of the terms is not recorded."""
    match latency_from:
        case LatencyFrom.INPUT if times.input_read_at is not None and times.input_read_at > times.awarded_at:
            return LatencyBasis(INPUT_READ, times.input_read_at)
        case LatencyFrom.START if times.started_at is not None:
            return LatencyBasis(START, times.started_at)
        case LatencyFrom.INPUT | LatencyFrom.AWARD | LatencyFrom.START:
            return LatencyBasis(AWARD, times.awarded_at)


def measure_latency(times: ContractTimes, latency_from: LatencyFrom, received_at: datetime) -> dict[str, Any]:
    """The metadata about the time of an output: how long the agent took, from when that counts, and since its start.

    What the agent claims is compared with the time since its start, where it reported one: before that it may have
    waited, so a shorter claim does not contradict the longer time.
    """
    basis = find_latency_basis(times, latency_from)
    since_start = {} if times.started_at is None else {"observed_ms": _ms_between(times.started_at, received_at)}
    return {
        "duration_ms": _ms_between(basis.at, received_at),
        "latency_basis": {
            "event": basis.event,
            "at": basis.at.astimezone(UTC).isoformat(timespec="microseconds"),
        },
        **since_start,
    }


def _ms_between(begin: datetime, end: datetime) -> float:
    """Milliseconds between two times; 0 where the clock was set back in between."""
    return max((end - begin) / _MS, 0.0)
