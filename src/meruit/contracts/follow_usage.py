"""What is written of usage, and in the same transaction what follows of it for contracts that pay for tokens."""

from typing import Generic, NamedTuple, TypeVar

from meruit.contracts.store.transaction import Actor
from meruit.contracts.transitions import FollowUsage
from meruit.model.access import Scope
from meruit.model.metering import UsageRecord
from meruit.store.recorder import Write
from meruit.store.transaction import Writing
from meruit.usage.store.by_contract import remember

T = TypeVar("T")


class Followed(NamedTuple, Generic[T]):
    """A write about usage, such as a look, with all that it means for money; both become durable, or neither."""

    tenant: str
    by: str
    write: Write[T]

    def __call__(self, writing: Writing) -> T:
        """Write it; then contracts are paid, wait on, or are taken back."""
        answer = self.write(writing)
        records = answer if isinstance(answer, list) else [answer]
        known = [one for one in records if isinstance(one, UsageRecord)]
        for contract_id in remember(writing, self.tenant, known):
            FollowUsage(Actor(Scope(self.tenant), self.by), contract_id)(writing)
        return answer
