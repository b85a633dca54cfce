"""Contracts for programs: each call is durable when it returns."""

import math
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from meruit.contracts.invariants import find_violations
from meruit.contracts.lifecycle import Decision
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.rejudge import rejudge
from meruit.contracts.store import ledger
from meruit.contracts.store import read as contracts
from meruit.contracts.store import work as works
from meruit.contracts.store.ledger import Balance, Statement
from meruit.contracts.store.read import ContractView
from meruit.contracts.store.transaction import Actor, ContractReply, ContractRequest, new_salt
from meruit.contracts.store.work import WorkView
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ExpireContracts,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    StartContract,
    VoidContract,
)
from meruit.documents.authoring import parse_work
from meruit.errors import MeruitError
from meruit.governance.dossier import HandedIn
from meruit.model.access import DEFAULT_TENANT, Scope
from meruit.model.contract import WorkSubmission
from meruit.model.outcome import MAX_LABEL
from meruit.model.threshold import money
from meruit.outcomes.store.write import IdempotentReplay
from meruit.store.transaction import WriteTransaction


class Market:
    """Work, contracts and money of one tenant; closes its store when it is left."""

    def __init__(self, marketplace: Marketplace, *, tenant: str = DEFAULT_TENANT, by: str = "python") -> None:
        self.marketplace = marketplace
        self._store = marketplace.store
        self._actor = Actor(Scope(tenant), by)
        self._request = ContractRequest(self._actor)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self._store.close()

    def publish(self, work: WorkSubmission | Mapping[str, Any]) -> WorkView:
        """Give work out; raises DocumentError, and NullAgentPasses for criteria that doing nothing meets."""
        if not isinstance(work, WorkSubmission):
            known = self.marketplace.registrar.engine.catalogue.names()
            work = parse_work(work, known_metrics=known)
        found = self._store.recorder.write(self.marketplace.publish(self._actor, work))
        # Without an idempotency key there is nothing to replay.
        assert not isinstance(found, IdempotentReplay)  # noqa: S101
        return works.to_work_view(found, work.input_for_judge())

    def award(self, work_id: str, agent_id: str, cpc_rate: Any = None) -> ContractView:
        """Give an agent the contract, and put its money aside."""
        _require_printable("an agent's id", agent_id)
        try:
            rate = None if cpc_rate is None else money(cpc_rate)
        except ValueError as problem:
            raise MeruitError(f"cpc_rate: {problem}") from None
        return self._write(
            AwardContract(self._request, self._store.surroundings.new_id("con"), work_id, agent_id, rate)
        )

    def start(self, contract_id: str) -> ContractView:
        """The agent begins; from here on its time is taken."""
        return self._write(StartContract(self._request, contract_id))

    def complete(
        self,
        contract_id: str,
        output: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        claims: Mapping[str, float] | None = None,
    ) -> ContractView:
        """Hand in an output: verified, believed or not, settled or held, in one transaction."""
        _check_handed_in(output, metadata or {}, claims or {})
        case = self.marketplace.find_contract(self._actor, contract_id)
        handed = HandedIn(output, metadata or {}, claims or {})
        return self._write(self.marketplace.completion_sync(self._request, case, handed))

    def settle(self, contract_id: str) -> ContractView:
        """Pay what a clear verdict is worth; what is settled already is told as it was."""
        return self._write(SettleContract(self._request, contract_id))

    def release(self, contract_id: str, reason: str) -> ContractView:
        """Let what was held be paid."""
        return self._write(
            ReleaseContract(self._request, contract_id, _reason(reason), new_salt(self._store.surroundings.entropy))
        )

    def void(self, contract_id: str, reason: str) -> ContractView:
        """Pay nobody; the escrow goes back."""
        return self._write(VoidContract(self._request, contract_id, _reason(reason)))

    def reverse(self, contract_id: str, reason: str) -> ContractView:
        """Take back what was paid, to be settled by a later verdict."""
        return self._write(ReverseContract(self._request, contract_id, _reason(reason)))

    def rejudge(self, contract_id: str, reason: str) -> ContractView:
        """Judge the output again by the contract's own criteria, as one more version of its verdict."""
        return contracts.to_contract_view(rejudge(self.marketplace, self._actor, contract_id, _reason(reason)))

    def dispute(self, contract_id: str, reason: str) -> ContractView:
        """Object to how it was judged or paid."""
        return self._write(DisputeContract(self._request, contract_id, _reason(reason)))

    def resolve(self, contract_id: str, decision: Decision | str, reason: str) -> ContractView:
        """End a dispute: uphold, reverse or void."""
        try:
            chosen = Decision(decision)
        except ValueError:
            raise MeruitError(f"a dispute ends with {', '.join(Decision)}, not {decision!r}") from None
        return self._write(ResolveDispute(self._request, contract_id, chosen, _reason(reason)))

    def expire(self) -> int:
        """Give back the money of contracts whose deadline has passed; answers how many."""
        return self._store.recorder.write(ExpireContracts(self._actor.by))

    def contract(self, contract_id: str) -> ContractView:
        """A contract as it stands; raises NotFound."""
        with self._store.database.reading() as connection:
            return contracts.to_contract_view(
                contracts.load_snapshot_with_history(connection, self._actor.scope, contract_id)
            )

    def balances(self) -> list[Balance]:
        """Every account and what it comes to."""
        with self._store.database.reading() as connection:
            return ledger.balances(connection, self._actor.tenant)

    def statement(
        self, account: str, currency: str = "USD", since: datetime | None = None, until: datetime | None = None
    ) -> Statement:
        """What moved on an account in a period."""
        with self._store.database.reading() as connection:
            return ledger.statement(connection, self._actor.tenant, account, currency, since, until)

    def check(self) -> list[str]:
        """What is wrong with the books, a sentence each; nothing is, unless somebody changed them."""
        with self._store.database.reading() as connection:
            return find_violations(ledger.books(connection, self._actor.tenant))

    # Any: the moves share no base but what they are called with and answer.
    def _write(self, move: Any) -> ContractView:
        def write(writing: WriteTransaction) -> ContractReply:
            found: ContractReply = move(writing)
            return found

        standing = self._store.recorder.write(write)
        assert not isinstance(standing, IdempotentReplay)  # noqa: S101 - as above
        return contracts.to_contract_view(standing)


# Any, here and below: programs pass anything.
def _check_handed_in(output: Any, metadata: Any, claims: Any) -> None:
    """Raise MeruitError for what nobody could hand in."""
    for name, part in (("output", output), ("metadata", metadata), ("claims", claims)):
        if not isinstance(part, Mapping):
            raise MeruitError(f"{name} must be a mapping, got {type(part).__name__}")
    for name, value in claims.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise MeruitError(f"the claim {name!r} must be a finite number, got {value!r}")


def _reason(reason: str) -> str:
    return _require_printable("a reason", reason)


def _require_printable(what: str, text: Any) -> str:
    """A line that is recorded and shown; raises MeruitError for anything else."""
    if isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= MAX_LABEL:
        return text
    raise MeruitError(f"{what} is 1 to {MAX_LABEL} printable characters")
