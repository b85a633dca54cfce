"""Latency metrics, as measured by the system that ran the work."""

from collections.abc import Mapping
from typing import Any

from meruit.model.evidence import Fault, Measured, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.work import CLAIMED, Work
from meruit.registry import Finding, metrics

# An absent duration is not 0: a default of 0 would always be fast enough.


def _reading(work: Work, name: str, key: str) -> Finding:
    value: Any = work.metadata.get(key)
    if value is None:
        claims = work.metadata.get(CLAIMED)
        claim = claims.get(key) if isinstance(claims, Mapping) else None
        if claim is not None:
            return Measured(claim, provenance=Provenance.CLAIMED)
        unread = f" ({name} is not read)" if name in work.metadata else ""
        return Missing(f"the execution metadata has no {key}{unread}", fault=Fault.SYSTEM)
    # The judge refuses anything that is not a number.
    return value  # type: ignore[no-any-return]


@metrics.add(
    "latency_ms",
    kind=MetricType.LATENCY,
    provenance=Provenance.OBSERVED,
    examples=[(Work(metadata={"duration_ms": 812}), 812), (Work(), Missing)],
)
def latency_ms(work: Work) -> Finding:
    """Milliseconds from request to the end of the answer (`metadata.duration_ms`)."""
    return _reading(work, "latency_ms", "duration_ms")


@metrics.add(
    "time_to_first_byte",
    kind=MetricType.LATENCY,
    provenance=Provenance.OBSERVED,
    examples=[(Work(metadata={"ttfb_ms": 95.5}), 95.5), (Work(), Missing)],
)
def time_to_first_byte(work: Work) -> Finding:
    """Milliseconds from request to the first byte (`metadata.ttfb_ms`)."""
    return _reading(work, "time_to_first_byte", "ttfb_ms")


@metrics.add(
    "processing_time",
    kind=MetricType.LATENCY,
    provenance=Provenance.OBSERVED,
    examples=[(Work(metadata={"processing_ms": 640}), 640), (Work(), Missing)],
)
def processing_time(work: Work) -> Finding:
    """Milliseconds of computation, waiting left out (`metadata.processing_ms`)."""
    return _reading(work, "processing_time", "processing_ms")
