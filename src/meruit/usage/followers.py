"""Write usage together with what follows from it elsewhere, in one transaction.

Usage does not know contracts. Contracts that pay for tokens register a follower, and so may an installed package.
"""

from typing import Generic, TypeVar

import msgspec

from meruit.model.metering import UsageRecord
from meruit.registry import usage_followers
from meruit.store.recorder import Write
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.by_contract import remember

T = TypeVar("T")


class UsageWrite(msgspec.Struct, Generic[T], frozen=True):
    """A write about usage, with its consequences for contracts; both become durable, or neither."""

    tenant: str
    by: str
    write: Write[T]

    def __call__(self, writing: WriteTransaction) -> T:
        """Write it, then call each follower for each contract that the runs name."""
        answer = self.write(writing)
        records = answer if isinstance(answer, list) else [answer]
        known = [one for one in records if isinstance(one, UsageRecord)]
        for contract_id in remember(writing, self.tenant, known):
            for follower in usage_followers:
                follower.follow(writing, self.tenant, self.by, contract_id)
        return answer
