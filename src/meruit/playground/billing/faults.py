"""What can go wrong at a provider, all of it repeatable: the same seed and the same questions, the same faults."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

_WHOLE = 2**64


class OutageKind(StrEnum):
    """How an outage looks."""

    ERROR = "500"
    UNAVAILABLE = "503"
    HANG_UP = "hang_up"
    """The connection closes without an answer."""
    SILENT = "silent"
    """No answer comes, and the connection stays open."""


class Outage(NamedTuple):
    """Nobody gets an answer from one moment to before another."""

    start: datetime
    end: datetime
    kind: OutageKind = OutageKind.UNAVAILABLE


class Dip(NamedTuple):
    """Whoever looks from one moment to before another sees less than was there to be seen before."""

    start: datetime
    end: datetime
    fraction: float = 1.0
    """Of the calls of each attribution key and model; all of them vanish at 1."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong; by default nothing. Shares are between 0 and 1."""

    outages: Sequence[Outage] = ()
    rate_limited: float = 0.0
    """The share of questions answered 429."""
    per_minute: int | None = None
    """How many questions a minute of the clock takes; one more is answered 429."""
    retry_after_s: int = 1
    """What a refusal by chance tells its caller to wait."""
    broken_off: float = 0.0
    """The share of answers that end half-way, with their connection."""
    unfinished: float = 0.0
    """The share of pages that say that there are more and not where."""
    malformed: float = 0.0
    """The share of answers that are no JSON."""
    dips: Sequence[Dip] = ()
    late: float = 0.0
    """The share of calls that show only after `late_by`; it holds for calls made from then on."""
    late_by: timedelta = timedelta(hours=6)
    skew: timedelta = timedelta(0)
    """How far the provider's clock is ahead; what it calls the future is by that clock."""

    def outage(self, now: datetime) -> OutageKind | None:
        """Whether nobody gets an answer now, and how that looks."""
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
