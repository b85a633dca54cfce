"""Pay, hold or reverse a contract's token charges when the usage of its runs changes."""

from meruit.contracts.store.transaction import Actor
from meruit.contracts.transitions import FollowUsage
from meruit.model.access import Scope
from meruit.registry import usage_followers
from meruit.store.transaction import WriteTransaction


@usage_followers.add("pay_tokens")
def pay_tokens(writing: WriteTransaction, tenant: str, by: str, contract_id: str) -> None:
    """Pay, hold or reverse what the contract owes for tokens."""
    FollowUsage(Actor(Scope(tenant), by), contract_id)(writing)
