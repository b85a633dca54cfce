"""Faults of a provider, repeatable: the same seed and the same requests give the same faults."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

_WHOLE = 2**64


class OutageKind(StrEnum):
    """How an outage looks."""

    ERROR = "500"
    UNAVAILABLE = "503"
    HANG_UP = "hang_up"
    """The connection closes without an answer."""
    SILENT = "silent"
    """No answer comes, and the connection stays open."""


class Outage(msgspec.Struct, frozen=True):
    """No request is answered between two times."""

    start: datetime
    end: datetime
    kind: OutageKind = OutageKind.UNAVAILABLE


class Dip(msgspec.Struct, frozen=True):
    """Requests between two times see fewer calls than before."""

    start: datetime
    end: datetime
    fraction: float = 1.0
    """Of the calls of each attribution key and model; all of them vanish at 1."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong; by default nothing. Shares are between 0 and 1."""

    outages: Sequence[Outage] = ()
    rate_limited: float = 0.0
    """The share of requests answered 429."""
    per_minute: int | None = None
    """How many requests a minute are answered; one more is answered 429."""
    retry_after_s: int = 1
    """The Retry-After of a random 429."""
    broken_off: float = 0.0
    """The share of responses that break off."""
    unfinished: float = 0.0
    """The share of pages with `has_more` and without a next page."""
    malformed: float = 0.0
    """The share of responses that are not valid JSON."""
    dips: Sequence[Dip] = ()
    late: float = 0.0
    """The share of calls that show only after `late_by`; it holds for calls made from then on."""
    late_by: timedelta = timedelta(hours=6)
    skew: timedelta = timedelta(0)
    """How far the provider's clock is ahead; what it calls the future is by that clock."""

    def outage(self, now: datetime) -> OutageKind | None:
        """The outage at this time; None where the provider is up."""
        return next((one.kind for one in self.outages if one.start <= now < one.end), None)

    def loss_share(self, now: datetime) -> float:
        """The share of calls that do not show now."""
        return max((one.fraction for one in self.dips if one.start <= now < one.end), default=0.0)


def is_triggered(share: float, seed: int, what: str, about: str) -> bool:
    """Whether something that happens with this chance happens this time."""
    if share <= 0:
        return False
    drawn = hashlib.blake2b(f"{seed}\n{what}\n{about}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") < share * _WHOLE
