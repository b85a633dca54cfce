"""Where votes and the tokens of calls are kept: the interface, and the one that forgets when the process ends."""

from collections import Counter
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from meruit.model.record import Record
from meruit.model.vote import Vote

MAX_SENDS = 5
"""How often a question is sent without an answer that was recorded: once, and once more after each death."""
MAX_REMEMBERED = 10_000
"""Votes that are kept in memory."""


class JudgeCall(Record, frozen=True):
    """One request to an endpoint; it is written down before it is sent."""

    tenant: str
    account: str
    voter: str
    model: str
    output_digest: str
    """Of the output that it is about."""
    other_digest: str
    """Of the output that it is compared with; empty where there is none."""
    reserved_tokens: int
    """The most that it can cost; counted until the endpoint has said what it cost."""
    began_at: datetime
    key: str = ""
    """The Idempotency-Key that it is sent with: the digest of what is asked."""
    reserved_micros: int | None = None
    """The most that it can cost in millionths of a dollar; None where the model's price is not known."""
    fresh: bool = False
    """Whether it is asked again on purpose, however often it was sent before."""

    @property
    def accounts(self) -> tuple[str, str]:
        """What its tokens count for: its account, and the day."""
        return self.account, f"day:{self.began_at.date().isoformat()}"


class CallLimits(msgspec.Struct, frozen=True):
    """The most that may be spent; None for no limit."""

    account_tokens: int | None = None
    day_tokens: int | None = None
    account_micros: int | None = None
    day_micros: int | None = None
    voter_micros: int | None = None
    """For one judge and account."""


class Spent(msgspec.Struct, frozen=True):
    """What an account or a day has spent, calls that are not answered yet included."""

    tokens: int = 0
    micros: int = 0
    voter_micros: int = 0
    """The share of the judge that is to be asked."""


class Reservation(StrEnum):
    """Whether a call may be sent."""

    GRANTED = "granted"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - tokens of a model
    COST_LIMIT = "cost_limit"
    POISONED = "poisoned"
    """It was sent MAX_SENDS times, and each time the process ended before the answer was recorded."""


class CallCost(msgspec.Struct, frozen=True):
    """What a call has cost; None where the endpoint did not say, or the price is not known."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    micros: int | None = None


class TokenTotal(Record, frozen=True):
    """The tokens of judges for one account and model."""

    account: str
    voter: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    unknown_calls: int
    """Calls whose tokens are not known: the endpoint did not say, or the process ended before its answer."""
    unknown_tokens: int
    """The most that those can have cost."""
    cost_micros: int = 0
    """What the counted calls cost, in millionths of a dollar; without those whose model has no known price."""
    unknown_micros: int = 0
    """The most that the calls without a count can have cost."""
    unpriced_calls: int = 0
    """Calls whose model has no known price."""


class VoteRecords(Protocol):
    """Keeps votes by content, and counts tokens."""

    async def find(self, tenant: str, key: str) -> Vote | None:
        """The vote that was answered before; None where there is none."""

    async def reserve(self, call: JudgeCall, limits: CallLimits) -> Reservation:
        """Count the most that a call can cost, and write down that it is sent, before it is; or refuse it."""

    async def finish(self, call: JudgeCall, vote: Vote | None, cost: CallCost) -> None:
        """Count what the call has cost, and keep the vote where there is one."""


class MemoryVotes:
    """Votes of this process, for engines without a store."""

    def __init__(self) -> None:
        self._votes: dict[tuple[str, str], Vote] = {}
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._micros: Counter[tuple[str, str, str]] = Counter()

    async def find(self, tenant: str, key: str) -> Vote | None:
        """The vote that was answered before; None where there is none."""
        return self._votes.get((tenant, key))

    async def reserve(self, call: JudgeCall, limits: CallLimits) -> Reservation:
        """Count the most that a call can cost; or refuse it."""
        account, day = (self._read_spent(call, name) for name in call.accounts)
        found = allow(call, account, day, limits)
        if found is Reservation.GRANTED:
            self._add(call, call.reserved_tokens, call.reserved_micros or 0)
        return found

    async def finish(self, call: JudgeCall, vote: Vote | None, cost: CallCost) -> None:
        """Count what the call has cost, and keep the vote where there is one."""
        if cost.input_tokens is not None and cost.output_tokens is not None:
            tokens = cost.input_tokens + cost.output_tokens - call.reserved_tokens
            self._add(call, tokens, (cost.micros or 0) - (call.reserved_micros or 0))
        if vote is not None:
            if len(self._votes) >= MAX_REMEMBERED:
                self._votes.pop(next(iter(self._votes)))
            self._votes[call.tenant, vote.key] = vote

    def _read_spent(self, call: JudgeCall, account: str) -> Spent:
        micros = {
            voter: spent
            for (tenant, name, voter), spent in self._micros.items()
            if (tenant, name) == (call.tenant, account)
        }
        return Spent(
            tokens=self._tokens[call.tenant, account],
            micros=sum(micros.values()),
            voter_micros=micros.get(call.voter, 0),
        )

    def _add(self, call: JudgeCall, tokens: int, micros: int) -> None:
        for account in call.accounts:
            self._tokens[call.tenant, account] += tokens
            self._micros[call.tenant, account, call.voter] += micros


def allow(call: JudgeCall, account: Spent, day: Spent, limits: CallLimits) -> Reservation:
    """Whether the limits allow a call, by what its account and its day have spent."""
    tokens = ((limits.account_tokens, account.tokens), (limits.day_tokens, day.tokens))
    if any(limit is not None and spent + call.reserved_tokens > limit for limit, spent in tokens):
        return Reservation.TOKEN_LIMIT
    micros = (
        (limits.account_micros, account.micros),
        (limits.day_micros, day.micros),
        (limits.voter_micros, account.voter_micros),
    )
    for limit, spent in micros:
        # A call without a known price could cost anything.
        if limit is not None and (call.reserved_micros is None or spent + call.reserved_micros > limit):
            return Reservation.COST_LIMIT
    return Reservation.GRANTED
