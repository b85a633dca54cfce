"""The response of an account: the counts for each run, and the costs."""

from array import array
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec

from meruit.errors import FetchError, FetchFailed
from meruit.model.metering import AttributionKind, CostRow, MeteredRun, Page, UsageRecord, UsageRow, Window
from meruit.model.time import to_micros
from meruit.model.usage import Observation, Tokens, UsageStatus
from meruit.usage.attribution.cohorts import CohortSpan
from meruit.usage.attribution.project import Fetch, ProviderCounts
from meruit.usage.pricing import amount_billed

DAILY_COST_KINDS = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Kinds of attribution key that providers bill by the day."""


class AccountResponse(msgspec.Struct, frozen=True):
    """All pages of one request."""

    counts: ProviderCounts
    fetch: Fetch
    window: Window | None
    """None where single calls were requested."""
    calls: dict[str, UsageRow]
    """The calls with a known cost, by their ids."""

    def observe(self, run: MeteredRun, shared: CohortSpan | None) -> Observation:
        """Observe a run, or the cohort that it is counted with."""
        return self.counts.observe(run, self.fetch, shared)

    def amount_billed(self, record: UsageRecord, costs: Sequence[CostRow] = ()) -> Decimal | None:
        """What the provider bills for a verified run; None where the cost cannot be attributed."""
        run, tokens = record.run, record.verdict.tokens
        if record.verdict.status is not UsageStatus.VERIFIED or tokens is None:
            return None
        rows = [self.calls[call.id] for call in run.calls if call.id in self.calls]
        return amount_billed(run, tokens, rows=rows, costs=costs, key_tokens=self._tokens_of_key(run, costs))

    def _tokens_of_key(self, run: MeteredRun, costs: Iterable[CostRow]) -> Tokens | None:
        """All tokens of the run's attribution key on the days whose costs may be the run's."""
        if run.started_at is None or run.ended_at is None or run.attribution_key.kind not in DAILY_COST_KINDS:
            return None
        days = [one for one in costs if one.start <= run.ended_at and one.end > run.started_at]
        if not days or self.counts.has_claimed:
            return None
        start, end = min(one.start for one in days), max(one.end for one in days)
        attribution_key = array("q", [self.counts.key_code(run.attribution_key.kind, run.attribution_key.value)])
        columns = self.counts.totals(attribution_key, array("q", [to_micros(start)]), array("q", [to_micros(end)]))
        put_in, put_out = columns[0][0], columns[1][0]
        return Tokens(put_in, put_out) if min(put_in, put_out) >= 0 else None


class UsagePageCollector:
    """Collects the pages of one request."""

    def __init__(self, counted: ProviderCounts) -> None:
        self.counted = counted
        self.raw: list[bytes] = []
        self.at: datetime | None = None
        """By the provider's clock; None before the first page."""
        self._watermark: datetime | None = None
        self._calls: dict[str, UsageRow] = {}

    def add(self, page: Page, claimed: Container[str] = ()) -> None:
        """Add a page, with the ids of calls that runs have claimed."""
        self.counted.add(page.rows, claimed)
        self._calls |= {one.request_id: one for one in page.rows if one.request_id and one.cost is not None}
        self.raw.append(page.raw)
        self.at = page.at if self.at is None else max(self.at, page.at)
        if page.watermark is not None:
            self._watermark = page.watermark if self._watermark is None else min(self._watermark, page.watermark)

    def build_response(self, account: str, now: datetime, digest: str, window: Window | None) -> AccountResponse:
        """Build the response; without any page, its time is now."""
        fetch = Fetch(account=account, at=self.at or now, digest=digest, watermark=self._watermark)
        return AccountResponse(counts=self.counted, fetch=fetch, window=window, calls=self._calls)


def failure_time(failed: FetchFailed, now: datetime) -> datetime:
    """When a request failed; by our clock where the provider's clock is wrong."""
    return now if failed.at is None or failed.kind is FetchError.CLOCK else failed.at
