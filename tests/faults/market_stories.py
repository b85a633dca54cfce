"""Stories of contracts, each a row of moves that can be asked for again: what callers want while processes die."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select
from tests.contracts.trading import COPY, ENGINE, GOOD, LEAKED, WEAK, sent, written

from meruit.contracts.lifecycle import Decision
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.store import work as works
from meruit.contracts.store.transaction import Actor, ContractRequest
from meruit.contracts.store.work import SubmitWork
from meruit.contracts.transitions import (
    AwardContract,
    CompleteContract,
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
from meruit.governance.dossier import HandedIn
from meruit.model.access import Scope
from meruit.outcomes.service import Registrar
from meruit.outcomes.store.read import criteria_body
from meruit.outcomes.store.write import AddVersions, NewVersion, result_from
from meruit.store import tables
from meruit.store.idempotency import IdempotentRequest, IdempotentWrite
from meruit.store.recorder import Write
from meruit.store.store import Store

BY = "harness"


class Caller(NamedTuple):
    """Who makes a move, and with which key."""

    store: Store
    tenant: str
    key: str
    attempt: int

    @property
    def request(self) -> ContractRequest:
        return ContractRequest(Actor(Scope(self.tenant), BY), self.key)

    # Any: each transition returns its own kind of value.
    def once(self, write: Write[Any], render: Callable[[Any], bytes]) -> Write[Any]:
        """The write with this caller's idempotency key."""
        return IdempotentWrite(self.tenant, IdempotentRequest(self.key, "same", 200), write, render)


class Ask(NamedTuple):
    """One move, which can be asked for again."""

    name: str
    contract: str
    make: Callable[[Caller], Write[Any]]
    moved: tuple[str, int] | None = None
    """The row that tells of it, by operation and number."""
    keyed: bool = True
    # Any: a contract's snapshot, or work.
    render: Callable[[Any], bytes] = sent

    def write(self, caller: Caller) -> Write[Any]:
        """What the recorder is given."""
        made = self.make(caller)
        return caller.once(made, self.render) if self.keyed else made


class Step(NamedTuple):
    """Moves that share a transaction."""

    asks: tuple[Ask, ...]
    after_h: int = 0
    """How long passes before it."""

    @property
    def name(self) -> str:
        return " + ".join(ask.name for ask in self.asks)


class Story(NamedTuple):
    """What becomes of one contract."""

    name: str
    steps: tuple[Step, ...]
    contracts: tuple[str, ...]


# What the moves are made of: judged once, before the first life, and written for whichever tenant.


class Templates:
    """Work and completions as a marketplace makes them."""

    def __init__(self, store: Store) -> None:
        self._market = Marketplace(Registrar(ENGINE, store))
        self._actor = Actor(Scope("template"), BY)
        self._works: dict[str, SubmitWork] = {}
        self._completions: dict[tuple[str, str], CompleteContract] = {}

    def work(self, kind: str) -> SubmitWork:
        """Work of this kind, there for the templates to be judged on."""
        if kind not in self._works:
            made = self._works[kind] = self._market.publish(self._actor, parse_work(written(kind)))
            self._market.store.recorder.write(made)
        return self._works[kind]

    def completion(self, contract: str, kind: str, agent: str, text: str) -> CompleteContract:
        """An output, judged."""
        if (contract, text) not in self._completions:
            request = ContractRequest(self._actor)
            award = AwardContract(request, f"{contract}-{len(self._completions)}", self.work(kind).id, agent)
            self._market.store.recorder.write(award)
            case = self._market.find_contract(self._actor, award.contract_id)
            made = self._market.completion_sync(request, case, HandedIn({"text": text}, {"run_id": contract}))
            labels = msgspec.structs.replace(made.outcome.labels, contract_id=contract)
            outcome = msgspec.structs.replace(made.outcome, labels=labels)
            self._completions[contract, text] = msgspec.structs.replace(made, contract_id=contract, outcome=outcome)
        return self._completions[contract, text]


class Teller:
    """Makes the steps of one story."""

    def __init__(self, templates: Templates, name: str, kind: str = "usual", *, more: int = 0) -> None:
        self.name = name
        self.contracts = tuple(f"con_{name}_{number}" for number in range(more + 1))
        self._templates, self._kind = templates, kind
        self._steps: list[Step] = []
        self._asks: list[Ask] = []
        self._after_h = 0

    @property
    def contract(self) -> str:
        return self.contracts[0]

    def story(self) -> Story:
        return Story(self.name, tuple(self._steps), self.contracts)

    def then(self, after_h: int = 0) -> "Teller":
        """What was asked for so far is one step; what follows is another."""
        if self._asks:
            self._steps.append(Step(tuple(self._asks), self._after_h))
        self._asks, self._after_h = [], after_h
        return self

    def _ask(self, name: str, make: Callable[[Caller], Write[Any]], moved: tuple[str, int] | None, **more: Any) -> None:
        place = f"{self.name} {len(self._steps)}.{len(self._asks)} {name}"
        self._asks.append(Ask(place, self.contract, make, moved, **more))

    def submit(self) -> "Teller":
        template, work_id = self._templates.work(self._kind), f"wrk_{self.name}"

        def make(caller: Caller) -> SubmitWork:
            return msgspec.structs.replace(template, tenant=caller.tenant, id=work_id)

        self._ask("submit", make, None, render=lambda work: works.to_work_view(work).to_json())
        return self

    def award(self, place: int = 0) -> "Teller":
        contract, agent, work = self.contracts[place], f"agent_{self.name}", f"wrk_{self.name}"
        self._ask("award", lambda caller: AwardContract(caller.request, contract, work, agent), ("award", 0))
        self._asks[-1] = self._asks[-1]._replace(contract=contract)
        return self

    def start(self) -> "Teller":
        self._ask("start", lambda caller: StartContract(caller.request, self.contract), ("start", 0))
        return self

    def complete(self, text: str) -> "Teller":
        made = self._templates.completion(self.contract, self._kind, f"agent_{self.name}", text)

        def make(caller: Caller) -> CompleteContract:
            # Whoever asks again has it judged again, under another id.
            outcome = msgspec.structs.replace(
                made.outcome, tenant=caller.tenant, id=f"out_{self.name}_{caller.attempt}"
            )
            return msgspec.structs.replace(made, request=caller.request, outcome=outcome)

        self._ask("complete", make, ("complete", 0))
        return self

    def settle(self, number: int, *, nothing_new: bool = False) -> "Teller":
        moved = None if nothing_new else ("settle", number)
        self._ask("settle", lambda caller: SettleContract(caller.request, self.contract), moved)
        return self

    def release(self, number: int) -> "Teller":
        make = lambda caller: ReleaseContract(caller.request, self.contract, "looked at", b"s" * 16)  # noqa: E731
        self._ask("release", make, ("release", number))
        return self

    def void(self) -> "Teller":
        self._ask("void", lambda caller: VoidContract(caller.request, self.contract, "called off"), ("void", 0))
        return self

    def reverse(self, number: int) -> "Teller":
        self._ask(
            "reverse", lambda caller: ReverseContract(caller.request, self.contract, "wrong"), ("reverse", number)
        )
        return self

    def dispute(self, number: int) -> "Teller":
        self._ask("dispute", lambda caller: DisputeContract(caller.request, self.contract, "no"), ("dispute", number))
        return self

    def resolve(self, decision: Decision, number: int) -> "Teller":
        make = lambda caller: ResolveDispute(caller.request, self.contract, decision, "so be it")  # noqa: E731
        self._ask(f"resolve {decision}", make, ("resolve", number))
        return self

    def rescore(self) -> "Teller":
        self._ask("rescore", lambda caller: _rescored(caller, self.contract), None, keyed=False)
        return self

    def expire(self) -> "Teller":
        self._ask("expire", lambda _caller: ExpireContracts(BY), ("expire", 0), keyed=False)
        return self


def _rescored(caller: Caller, contract_id: str) -> AddVersions:
    """One more verdict that says the same, on what has one so far."""
    of, verdicts = tables.outcomes, tables.verdicts
    with caller.store.database.reading() as connection:
        mine = (of.c.tenant == caller.tenant) & (of.c.contract_id == contract_id)
        row = connection.execute(select(of).where(mine)).one()
        first = (verdicts.c.tenant == caller.tenant) & (verdicts.c.outcome_id == row.id) & (verdicts.c.version == 1)
        result = result_from(connection.execute(select(verdicts.c.result).where(first)).scalar_one())
        body = criteria_body(connection, caller.tenant, row.criteria_digest)
    assert result is not None
    return AddVersions(caller.tenant, body, (NewVersion(row.id, 1, result, b"r" * 16),), "again")


def stories(store: Store) -> list[Story]:
    """Every way that a contract can go."""
    templates = Templates(store)

    def begun(name: str, kind: str = "usual") -> Teller:
        # Work and its award in one transaction, but for the first two stories.
        return Teller(templates, name, kind).submit().award().then()

    def apart(name: str) -> Teller:
        return Teller(templates, name).submit().then().award().then().start().then()

    def paid(name: str) -> Teller:
        return begun(name).complete(GOOD).then()

    def held(name: str) -> Teller:
        return begun(name).complete(COPY).then()

    told = [
        apart("paid").complete(GOOD).then(),
        apart("weak").complete(WEAK).then(),
        held("released").release(1).then(),
        held("voided").void().then(),
        begun("invalid").complete(LEAKED).then().void().then(),
        begun("called_off").void().then(),
        begun("on_request", "on_request").complete(GOOD).then().settle(1).then(),
        begun("on_request_weak", "on_request").complete(WEAK).then().settle(1).then(),
        paid("upheld").dispute(2).then().resolve(Decision.UPHOLD, 2).then(),
        paid("reversed").dispute(2).then().resolve(Decision.REVERSE, 2).then().rescore().then().settle(2).then(),
        paid("undone").dispute(2).then().resolve(Decision.VOID, 2).then(),
        paid("again").reverse(1).then().rescore().then().settle(2).then().reverse(2).then().void().then(),
        held("frozen").dispute(1).then().resolve(Decision.UPHOLD, 1).then().release(1).then(),
        held("thawed").dispute(1).then().resolve(Decision.VOID, 1).then(),
        begun("expired", "brief").start().then(after_h=2).expire().then(),
        begun("expired_idle", "brief").then(after_h=2).expire().then(),
        # Callers that share a transaction: each sees what those before it did.
        begun("hurried")
        .complete(GOOD)
        .settle(1, nothing_new=True)
        .dispute(2)
        .then()
        .resolve(Decision.REVERSE, 2)
        .rescore()
        .then()
        .settle(2)
        .reverse(2)
        .void()
        .then(),
        Teller(templates, "crowded", more=2).submit().award().award(1).award(2).then().start().complete(GOOD).then(),
        held("looked_at").release(1).settle(1, nothing_new=True).reverse(1).void().then(),
    ]
    return [teller.story() for teller in told]
