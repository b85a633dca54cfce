"""What the APIs of all providers share: how a request is read, refused, and answered page by page."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from meruit.errors import ProviderRefusal
from meruit.playground.billing.calls import MINUTE_S, CallCostLine, CallLedger, CallVisibility, Group, ProviderCall

HOUR_S, DAY_S = 60 * MINUTE_S, 24 * 60 * MINUTE_S
MAX_CACHED = 200_000
"""How many spans of time have a cached response."""

# Any: documents in each provider's own shape.
Json = dict[str, Any]


@dataclass(frozen=True)
class BillingRequest:
    """A request, with what is needed to answer it."""

    path: str
    params: Mapping[str, Sequence[str]]
    """A list's name may end in `[]`; here it does not."""
    headers: Mapping[str, str]
    """Their names in lower case."""
    now: float
    """By the provider's clock."""
    refreshed_at: float
    """The watermark that the provider reports; late calls make it wrong."""
    ledger: CallLedger
    sight: CallVisibility
    unfinished: bool = False
    """Whether the response has `has_more` without a next page."""
    page_rows: int | None = None
    """The most rows on one page, also with a higher limit in the request."""

    def param(self, name: str) -> str | None:
        """A parameter that is there once, if it is; the last one counts."""
        given = self.params.get(name)
        return given[-1] if given else None

    def visible_calls(self, start: float, end: float) -> Iterator[ProviderCall]:
        """The calls from one moment to before another that can be seen."""
        return (call for call in self.ledger.between(start, end) if self.sight.shows(call))


Endpoint = Callable[[BillingRequest], object]
"""Answers a request with a document; raises Refused."""
Facts = Mapping[str, Callable[[ProviderCall | CallCostLine], str | None]]
"""The fields of a call by their names in the API; missing ones are null."""


class CallSelection:
    """The filters and groups of a request."""

    def __init__(self, asked: BillingRequest, facts: Facts, filters: Mapping[str, str]) -> None:
        """`filters` are the parameters that narrow it, with what each of them is about."""
        self.groups = tuple(asked.params.get("group_by", ()))
        self._facts = facts
        self._filters = {about: {*asked.params[name]} for name, about in filters.items() if name in asked.params}
        self.question = (self.groups, *sorted((about, *sorted(values)) for about, values in self._filters.items()))
        """What identifies this selection."""

    def is_selected(self, one: ProviderCall | CallCostLine) -> bool:
        """Whether the filters let a call through."""
        return all(self._fact(one, about) in values for about, values in self._filters.items())

    def group(self, one: ProviderCall | CallCostLine) -> Group:
        """Where a call belongs."""
        return tuple(self._fact(one, name) for name in self.groups)

    def label_group(self, group: Group) -> dict[str, str | None]:
        """A group with the names of its parts."""
        return dict(zip(self.groups, group, strict=True))

    def _fact(self, one: ProviderCall | CallCostLine, name: str) -> str | None:
        return self._facts[name](one) if name in self._facts else None


class ProviderApi(ABC):
    """One provider's APIs."""

    scope = ""
    """What a key must be allowed; empty where any key is good."""

    @property
    @abstractmethod
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The handlers, by path."""

    @abstractmethod
    def key(self, headers: Mapping[str, str]) -> str:
        """The key of a request; empty where it has none."""

    @abstractmethod
    def error_document(self, refused: ProviderRefusal) -> Json:
        """Build an error response as this provider does."""

    @abstractmethod
    def no_key(self, shown: str) -> ProviderRefusal:
        """Refuse a key that is wrong or missing."""

    def no_scope(self) -> ProviderRefusal:
        """Refuse a valid key without the permission."""
        return ProviderRefusal(403, f"This key may not do this; it lacks {self.scope}.")

    def too_many(self) -> ProviderRefusal:
        """Refuse a request over the rate limit."""
        return ProviderRefusal(429, "Rate limit reached for requests.", code="rate_limit_exceeded")

    def down(self, status: int) -> ProviderRefusal:
        """Build the response of a server error."""
        return ProviderRefusal(status, "The server had an error while processing your request. Sorry about that!")


def bearer(headers: Mapping[str, str]) -> str:
    """The bearer token of a request; empty where it has none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


class TimeBucket(NamedTuple):
    """A bucket of time in unix seconds; the end is exclusive."""

    start: int
    end: int


def split_buckets(whole: TimeBucket, width_s: int) -> Iterator[TimeBucket]:
    """Buckets that cover a range: bounded by multiples of their width, and by the range itself."""
    start = whole.start
    while start < whole.end:
        end = min(start - start % width_s + width_s, whole.end)
        yield TimeBucket(start, end)
        start = end


def bucket_page(
    asked: BillingRequest, whole: TimeBucket, width_s: int, limit: int, write: Callable[[TimeBucket], object]
) -> dict[str, object] | None:
    """The page of a range that is asked for, as `write` makes it of each bucket; None for a page of something else."""
    page = asked.param("page")
    start = whole.start if page is None else page_start(page)
    if start is None or not (start == whole.start or (whole.start < start < whole.end and start % width_s == 0)):
        return None
    size = min(limit, asked.page_rows or limit)
    shown = [*islice(split_buckets(TimeBucket(start, whole.end), width_s), size + 1)]
    following = page_token(shown[size].start) if len(shown) > size else None
    return {"data": [write(span) for span in shown[:size]], **paging_fields(asked, following)}


def paging_fields(asked: BillingRequest, following: str | None) -> dict[str, object]:
    """How a page says whether there is another."""
    more = following is not None or asked.unfinished
    return {"has_more": more, "next_page": None if asked.unfinished else following}


class BucketCache:
    """Cached responses for spans of time that do not change any more."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], msgspec.Raw] = {}
        self._written = 0

    def answer(
        self,
        asked: BillingRequest,
        span: TimeBucket,
        question: tuple[object, ...],
        write: Callable[[Iterable[ProviderCall]], Json],
    ) -> msgspec.Raw:
        """What `write` makes of the calls that can be seen in a span; `question` identifies it within that span."""
        if asked.ledger.written != self._written or len(self._kept) > MAX_CACHED:
            self._kept.clear()
            self._written = asked.ledger.written
        found = None if asked.sight.lost else self._kept.get((span, *question))
        if found is not None:
            return found
        calls = [*asked.ledger.between(*span)]
        seen = [call for call in calls if asked.sight.shows(call)]
        made = msgspec.Raw(msgspec.json.encode(write(seen)))
        # Visible to all from now on; a clock that goes back would show too much, and clocks do not.
        if len(seen) == len(calls):
            self._kept[span, *question] = made
        return made


def moment(seconds: float) -> str:
    """A moment in RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def page_token(place: int) -> str:
    """Encode where the next page begins as an opaque token."""
    return "page_" + base64.urlsafe_b64encode(str(place).encode()).decode()


def page_start(page: str) -> int | None:
    """Decode where a page begins; None for a token that is not valid."""
    try:
        where = int(base64.urlsafe_b64decode(page.removeprefix("page_")))
    except ValueError:
        return None
    return where if page_token(where) == page else None
