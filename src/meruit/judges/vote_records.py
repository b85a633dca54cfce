"""Where votes and the tokens of calls are kept: the interface, and the one that forgets when the process ends."""

from collections import Counter
from datetime import datetime
from typing import NamedTuple, Protocol

from meruit.model.record import Record
from meruit.model.vote import Vote

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

    @property
    def accounts(self) -> tuple[str, str]:
        """What its tokens count for: its account, and the day."""
        return self.account, f"day:{self.began_at.date().isoformat()}"


class TokenLimits(NamedTuple):
    """The most tokens that may be spent; None for no limit."""

    account: int | None
    day: int | None


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


class VoteRecords(Protocol):
    """Keeps votes by content, and counts tokens."""

    async def find(self, tenant: str, key: str) -> Vote | None:
        """The vote that was answered before; None where there is none."""

    async def reserve(self, call: JudgeCall, limits: TokenLimits) -> bool:
        """Count the most that a call can cost; False where a limit does not allow it."""

    async def finish(
        self, call: JudgeCall, vote: Vote | None, input_tokens: int | None, output_tokens: int | None
    ) -> None:
        """Count what the call has cost, and keep the vote where there is one."""


class MemoryVotes:
    """Votes of this process, for engines without a store."""

    def __init__(self) -> None:
        self._votes: dict[tuple[str, str], Vote] = {}
        self._spent: Counter[tuple[str, str]] = Counter()

    async def find(self, tenant: str, key: str) -> Vote | None:
        """The vote that was answered before; None where there is none."""
        return self._votes.get((tenant, key))

    async def reserve(self, call: JudgeCall, limits: TokenLimits) -> bool:
        """Count the most that a call can cost; False where a limit does not allow it."""
        spent, today = (self._spent[call.tenant, account] for account in call.accounts)
        if is_beyond(spent, today, call.reserved_tokens, limits):
            return False
        self._add(call, call.reserved_tokens)
        return True

    async def finish(
        self, call: JudgeCall, vote: Vote | None, input_tokens: int | None, output_tokens: int | None
    ) -> None:
        """Count what the call has cost, and keep the vote where there is one."""
        if input_tokens is not None and output_tokens is not None:
            self._add(call, input_tokens + output_tokens - call.reserved_tokens)
        if vote is not None:
            if len(self._votes) >= MAX_REMEMBERED:
                self._votes.pop(next(iter(self._votes)))
            self._votes[call.tenant, vote.key] = vote

    def _add(self, call: JudgeCall, tokens: int) -> None:
        for account in call.accounts:
            self._spent[call.tenant, account] += tokens


def is_beyond(spent: int, today: int, wanted: int, limits: TokenLimits) -> bool:
    """Whether so many tokens more would pass a limit."""
    return (limits.account is not None and spent + wanted > limits.account) or (
        limits.day is not None and today + wanted > limits.day
    )
