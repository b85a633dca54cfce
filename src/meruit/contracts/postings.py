"""Double entry: each movement of money is a set of postings that sum to zero."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from meruit.model.money import Bill

PLATFORM = "platform"
AGENT, CONSUMER, ESCROW = "agent:", "consumer:", "escrow:"
"""What the names of all other accounts begin with."""


class Posting(NamedTuple):
    """A change of one account."""

    account: str
    micros: int


class Parties(msgspec.Struct, frozen=True):
    """The accounts that a contract moves money between."""

    contract_id: str
    consumer_id: str
    agent_id: str

    @property
    def consumer(self) -> str:
        """The account that pays; negative by what it has put into escrow."""
        return f"{CONSUMER}{self.consumer_id}"

    @property
    def agent(self) -> str:
        """The account that is paid."""
        return f"{AGENT}{self.agent_id}"

    @property
    def escrow(self) -> str:
        """The account that holds the money until settlement."""
        return f"{ESCROW}{self.contract_id}"


def hold(parties: Parties, micros: int) -> tuple[Posting, ...]:
    """Put the most that a contract can cost into escrow, at its award."""
    return _without_zeros(Posting(parties.consumer, -micros), Posting(parties.escrow, micros))


def settle(parties: Parties, bill: Bill) -> tuple[Posting, ...]:
    """Empty the escrow: the payout to the agent, the fee to the platform, the rest to the consumer."""
    return _without_zeros(
        Posting(parties.escrow, -(bill.total + bill.released)),
        Posting(parties.agent, bill.payout),
        Posting(PLATFORM, bill.fee),
        Posting(parties.consumer, bill.released),
    )


def release(parties: Parties, micros: int) -> tuple[Posting, ...]:
    """Return the whole escrow to the consumer."""
    return _without_zeros(Posting(parties.escrow, -micros), Posting(parties.consumer, micros))


def reverse(postings: Sequence[Posting]) -> tuple[Posting, ...]:
    """The opposite transfer."""
    return tuple(Posting(account, -micros) for account, micros in postings)


def _without_zeros(*postings: Posting) -> tuple[Posting, ...]:
    return tuple(posting for posting in postings if posting.micros)
