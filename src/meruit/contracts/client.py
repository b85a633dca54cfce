"""Work, contracts and money for Python programs; each call is durable when it returns."""

import math
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from meruit.contracts.earnings import EarningsReport, to_earnings_report
from meruit.contracts.invariants import find_violations
from meruit.contracts.lifecycle import Decision
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.rejudge import rejudge
from meruit.contracts.store import ledger
from meruit.contracts.store import read as contracts
from meruit.contracts.store import work as works
from meruit.contracts.store.holds import load_hold, load_snapshot_in_full, page_holds
from meruit.contracts.store.ledger import Balance, EarningsFilter, Statement
from meruit.contracts.store.read import ContractSnapshot, ContractView
from meruit.contracts.store.transaction import Actor, ContractRequest, new_salt
from meruit.contracts.store.trust import load_trust
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
    to_settlement_amount,
)
from meruit.contracts.trust import TrustScore
from meruit.documents.authoring import parse_work
from meruit.errors import BadAmount, MeruitError
from meruit.governance.dossier import HandedIn
from meruit.model.access import DEFAULT_TENANT, Scope
from meruit.model.contract import WorkSubmission
from meruit.model.numbers import Number
from meruit.model.outcome import MAX_LABEL
from meruit.model.threshold import money
from meruit.store.paging import fill_page
from meruit.store.transaction import WriteTransaction
from meruit.verify.faults import examine_with

DEFAULT_CURRENCY = "USD"
"""Of the statement of an account that never moved."""


class Market:
    """Work, contracts and money of one tenant; as a context manager, it closes its store at the end."""

    def __init__(self, marketplace: Marketplace, *, tenant: str = DEFAULT_TENANT, by: str = "python") -> None:
        self.marketplace = marketplace
        self._store = marketplace.store
        self._actor = Actor(Scope(tenant), _require_printable("by", by))
        self._request = ContractRequest(self._actor)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self._store.close()

    def publish(self, work: WorkSubmission | Mapping[str, Any]) -> WorkView:
        """Publish work; raises DocumentError, and NullAgentPasses for criteria that an idle agent meets."""
        if not isinstance(work, WorkSubmission):
            catalogue = self.marketplace.registrar.engine.catalogue
            work = parse_work(work, known_metrics=catalogue.names(), examine=examine_with(catalogue))
        found = self._store.recorder.write(self.marketplace.publish(self._actor, work))
        return works.to_work_view(found, work.input_for_judge())

    def award(
        self, work_id: str, agent_id: str, cpc_rate: Any = None, *, provider_id: str | None = None
    ) -> ContractView:
        """Award a contract to an agent and put its price into escrow; earnings are summed by `provider_id` too."""
        _require_printable("an agent's id", agent_id)
        if provider_id is not None:
            _require_printable("a provider's id", provider_id)
        rate = None if cpc_rate is None else _amount("cpc_rate", cpc_rate)
        return self._write(
            AwardContract(
                request=self._request,
                contract_id=self._store.surroundings.new_id("con"),
                work_id=work_id,
                agent_id=agent_id,
                cpc_rate=rate,
                provider_id=provider_id,
            )
        )

    def start(self, contract_id: str) -> ContractView:
        """Record that the agent starts; its time is measured from here."""
        return self._write(StartContract(self._request, contract_id))

    def complete(
        self,
        contract_id: str,
        output: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        claims: Mapping[str, float] | None = None,
    ) -> ContractView:
        """Submit an output: verify it, ask governance, and settle or hold the contract, in one transaction."""
        _check_handed_in(output, metadata or {}, claims or {})
        case = self.marketplace.find_contract(self._actor, contract_id)
        handed = HandedIn(output=output, metadata=metadata or {}, claims=claims or {})
        return self._write(self.marketplace.completion_sync(self._request, case, handed))

    def settle(self, contract_id: str) -> ContractView:
        """Pay a clear verdict; a settled contract is returned unchanged."""
        return self._write(SettleContract(self._request, contract_id))

    def release(self, contract_id: str, reason: str) -> ContractView:
        """Pay a held contract, by decision of a person."""
        return self._write(
            ReleaseContract(
                request=self._request,
                contract_id=contract_id,
                reason=_reason(reason),
                salt=new_salt(self._store.surroundings.entropy),
            )
        )

    def void(self, contract_id: str, reason: str) -> ContractView:
        """Cancel a contract; the escrow goes back to the consumer."""
        return self._write(VoidContract(request=self._request, contract_id=contract_id, reason=_reason(reason)))

    def reverse(self, contract_id: str, reason: str) -> ContractView:
        """Reverse a payment into escrow; a later verdict can be settled."""
        return self._write(ReverseContract(request=self._request, contract_id=contract_id, reason=_reason(reason)))

    def rejudge(self, contract_id: str, reason: str) -> ContractView:
        """Judge the output again by the contract's criteria, as a new version of its verdict."""
        return contracts.to_contract_view(rejudge(self.marketplace, self._actor, contract_id, _reason(reason)))

    def dispute(self, contract_id: str, reason: str) -> ContractView:
        """Dispute how a contract was judged or paid."""
        return self._write(DisputeContract(request=self._request, contract_id=contract_id, reason=_reason(reason)))

    def resolve(
        self,
        contract_id: str,
        decision: Decision | str,
        reason: str,
        amount: Any = None,
        currency: str | None = None,
    ) -> ContractView:
        """End a dispute: uphold, reverse or void; or adjust, which settles it on `amount`.

        Raises BadAmount for an amount that is above what is held or was paid, or in another currency.
        """
        try:
            chosen = Decision(decision)
        except ValueError:
            raise MeruitError(f"decision must be one of {', '.join(Decision)}, not {decision!r}") from None
        settled_on = to_settlement_amount(None if amount is None else _amount("amount", amount), currency)
        return self._write(
            ResolveDispute(
                request=self._request,
                contract_id=contract_id,
                decision=chosen,
                reason=_reason(reason),
                amount=settled_on,
            )
        )

    def expire(self) -> int:
        """Release the escrow of contracts whose deadline has passed; returns their number."""
        return self._store.recorder.write(ExpireContracts(self._actor.by))

    def contract(self, contract_id: str) -> ContractView:
        """A contract with its history; raises NotFound."""
        with self._store.database.reading() as connection:
            return contracts.to_contract_view(load_snapshot_in_full(connection, self._actor.scope, contract_id))

    def holds(self, before: int | None = None, limit: int = 50) -> list[ContractView]:
        """Held and disputed contracts, newest first; `on_hold` says who stopped each, when and why.

        `before` is the cursor: the `seq` of the last contract of the previous page.
        """
        with self._store.database.reading() as connection:
            scope = self._actor.scope
            found = fill_page(
                lambda place, most: page_holds(connection, scope, before=place, limit=most), before, limit
            )
            return [*map(contracts.to_contract_view, found.entries)]

    def hold(self, contract_id: str) -> ContractView:
        """A held or disputed contract; `on_hold.reasons` has every reason with its evidence.

        Raises NotFound, and WrongState for a contract that is neither held nor disputed.
        """
        with self._store.database.reading() as connection:
            found = load_hold(connection, self._actor.scope, contract_id, self._store.blobs)
            return contracts.to_contract_view(found)

    def balances(self) -> list[Balance]:
        """The balance of every account."""
        with self._store.database.reading() as connection:
            return ledger.balances(connection, self._actor.tenant)

    def statement(
        self, account: str, currency: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> Statement:
        """The movements of an account in a period; raises UnknownAccount.

        `currency` may be left out for an account that has one; `statements` returns all of several.
        """
        with self._store.database.reading() as connection:
            known = ledger.require_account(connection, self._actor.tenant, account)
            if currency is None and len(known) > 1:
                raise MeruitError(f"{account} has {', '.join(known)}: pass currency, or call statements for all")
            chosen = currency or (known[0] if known else DEFAULT_CURRENCY)
            return ledger.statement(connection, self._actor.tenant, account, chosen, since, until)

    def statements(self, account: str, since: datetime | None = None, until: datetime | None = None) -> list[Statement]:
        """The movements of an account in a period, one statement a currency; raises UnknownAccount."""
        with self._store.database.reading() as connection:
            return [
                ledger.statement(connection, self._actor.tenant, account, currency, since, until)
                for currency in ledger.require_account(connection, self._actor.tenant, account)
            ]

    def earnings(
        self,
        agent_id: str | None = None,
        provider_id: str | None = None,
        *,
        currency: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> EarningsReport:
        """What agents and providers earned, by UTC day and currency, with totals."""
        wanted = EarningsFilter(agent_id=agent_id, provider_id=provider_id, currency=currency, since=since, until=until)
        with self._store.database.reading() as connection:
            return to_earnings_report(ledger.sum_earnings(connection, self._actor.tenant, wanted))

    def trust(self, agent_id: str, since: datetime | None = None, until: datetime | None = None) -> TrustScore:
        """How far an agent can be trusted to deliver, computed from its recorded work."""
        with self._store.database.reading() as connection:
            return load_trust(connection, self._actor.tenant, agent_id, since, until)

    def check(self) -> list[str]:
        """Check every invariant of the ledger; returns the violations, which only a changed database has."""
        with self._store.database.reading() as connection:
            return find_violations(ledger.books(connection, self._actor.tenant))

    # Any: the transitions share only what they are called with and return.
    def _write(self, transition: Any) -> ContractView:
        def write(writing: WriteTransaction) -> ContractSnapshot:
            found: ContractSnapshot = transition(writing)
            return found

        reply = self._store.recorder.write(write)
        return contracts.to_contract_view(reply)


# Any, here and below: programs may pass any object.
def _check_handed_in(output: Any, metadata: Any, claims: Any) -> None:
    """Raise MeruitError for an output that cannot be submitted."""
    for name, part in (("output", output), ("metadata", metadata), ("claims", claims)):
        if not isinstance(part, Mapping):
            raise MeruitError(f"{name} must be a mapping, got {type(part).__name__}")
    for name, value in claims.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise MeruitError(f"the claim {name!r} must be a finite number, got {value!r}")


def _amount(name: str, value: Any) -> Number:
    try:
        return money(value)
    except ValueError as problem:
        raise BadAmount("bad_amount", f"{name}: {problem}") from None


def _reason(reason: str) -> str:
    return _require_printable("a reason", reason)


def _require_printable(what: str, text: Any) -> str:
    """The text, if it is one printable line; raises MeruitError otherwise."""
    if isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= MAX_LABEL:
        return text
    raise MeruitError(f"{what} must have 1 to {MAX_LABEL} printable characters")
