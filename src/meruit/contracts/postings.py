"""Double entry: every movement of money as postings that sum to zero."""

from collections.abc import Sequence
from typing import NamedTuple

from meruit.model.money import Bill

PLATFORM = "platform"


class Posting(NamedTuple):
    """A change of one account."""

    account: str
    micros: int


class Parties(NamedTuple):
    """Whose accounts a contract moves money between."""

    contract_id: str
    consumer_id: str
    agent_id: str

    @property
    def consumer(self) -> str:
        """Who pays; below zero by what it has put up."""
        return f"consumer:{self.consumer_id}"

    @property
    def agent(self) -> str:
        """Who is paid."""
        return f"agent:{self.agent_id}"

    @property
    def escrow(self) -> str:
        """Where the money waits."""
        return f"escrow:{self.contract_id}"


def hold(parties: Parties, micros: int) -> tuple[Posting, ...]:
    """At the award: the most that it can cost is put aside."""
    return _without_zeros(Posting(parties.consumer, -micros), Posting(parties.escrow, micros))


def settle(parties: Parties, bill: Bill) -> tuple[Posting, ...]:
    """The escrow is emptied: the payout to the agent, the fee to the platform, the rest back."""
    return _without_zeros(
        Posting(parties.escrow, -(bill.total + bill.released)),
        Posting(parties.agent, bill.payout),
        Posting(PLATFORM, bill.fee),
        Posting(parties.consumer, bill.released),
    )


def release(parties: Parties, micros: int) -> tuple[Posting, ...]:
    """Nobody is paid: all of it goes back."""
    return _without_zeros(Posting(parties.escrow, -micros), Posting(parties.consumer, micros))


def reverse(postings: Sequence[Posting]) -> tuple[Posting, ...]:
    """The same transfer backwards."""
    return tuple(Posting(account, -micros) for account, micros in postings)


def _without_zeros(*postings: Posting) -> tuple[Posting, ...]:
    return tuple(posting for posting in postings if posting.micros)
