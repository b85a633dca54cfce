"""A marketplace for tests: work of several kinds, outputs good and bad, every move of a contract, and a clock."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select

from meruit import VerificationEngine
from meruit.contracts.invariants import find_violations
from meruit.contracts.lifecycle import Decision
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.store import read as contracts
from meruit.contracts.store.ledger import books
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.transaction import Actor, ContractRequest
from meruit.contracts.store.work import WorkRow
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    SettlementAmount,
    StartContract,
    VoidContract,
)
from meruit.documents.authoring import parse_work
from meruit.governance.dossier import HandedIn
from meruit.model.access import Scope
from meruit.model.contract import Contract
from meruit.outcomes.service import Registrar
from meruit.outcomes.store.read import criteria_body
from meruit.outcomes.store.write import AddVersions, NewVersion, result_from
from meruit.store import tables
from meruit.store.idempotency import IdempotentRequest, IdempotentWrite
from meruit.store.recorder import Write
from meruit.store.store import Store

TENANT = "acme"
OF_A_TENANT = {
    table.name: select(table).where(table.c.tenant == bindparam("whose"))
    for table in tables.metadata.sorted_tables
    if "tenant" in table.c
}
"""Every row that a tenant has, by its table."""
BEGINNING = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
ENGINE = VerificationEngine()

REFERENCE = "the quick brown fox jumps over the lazy dog while seven wizards brew five cups of tea " * 2
CANARY = "canary-7f3a9c"
GOOD = REFERENCE.replace("jumps", "leaps").replace("brew", "make")
WEAK = "the quick brown fox"
COPY = REFERENCE
"""A person must look at it."""
LEAKED = f"{GOOD} {CANARY}"
"""It is not believed."""

CPC, FIRST, SECOND, CAP, PENALTY = 50_000, 30_000, 20_000, 40_000, 10_000
"""In millionths; work that is good earns the cap, weak work the first bonus without the penalty."""
CRITERIA: list[dict[str, Any]] = [
    {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3, "bonus": "0.03"},
    {
        "metric": "rougeL",
        "metric_type": "rouge_score",
        "comparison": "gte",
        "threshold": 0.5,
        "bonus": "0.02",
        "penalty": "0.01",
    },
]
TIMED: dict[str, Any] = {
    "metric": "latency_ms",
    "metric_type": "latency",
    "comparison": "lte",
    "threshold": 500,
    "required": False,
    "bonus": "0.01",
}
"""A criterion that cannot be measured without a duration."""
KINDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "on_request": {"terms": {"settle": "on_request"}},
    "brief": {"terms": {"deadline_hours": 1}},
    "timed": {"success_criteria": {"criteria": [*CRITERIA, TIMED]}, "budget": {"max_bonus": "0.05"}},
    "plain": {"success_criteria": None, "budget": {}},
    "plain_on_request": {"success_criteria": None, "budget": {}, "terms": {"settle": "on_request"}},
}


class Hands:
    """A clock that tests move."""

    def __init__(self, now: datetime = BEGINNING) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def pass_h(self, hours: float) -> None:
        self.now += timedelta(hours=hours)


def written(kind: str = "usual", **more: Any) -> dict[str, Any]:
    """Work of a kind, as its buyer writes it."""
    chosen = {**KINDS[kind], **more}
    terms = {"cpc_rate": "0.05", "platform_fee_rate": "0.15", **chosen.pop("terms", {})}
    usual = {
        "title": "Tell it in your own words",
        "consumer_id": "buyer",
        "input": {"reference": REFERENCE},
        "success_criteria": {"criteria": CRITERIA},
        "canaries": [CANARY],
        "budget": {"max_bonus": "0.04"},
    }
    return {**usual, **chosen, "terms": terms}


class Trading:
    """One party that publishes, awards, completes and settles."""

    def __init__(self, store: Store, tenant: str = TENANT, by: str = "me", agent: str | None = None) -> None:
        self.store = store
        self.tenant = tenant
        self.market = Marketplace(Registrar(ENGINE, store))
        self.actor = Actor(Scope(tenant, agent, only_own=agent is not None), by)

    def request(self, key: str | None = None) -> ContractRequest:
        return ContractRequest(self.actor, key)

    # Any: what it returns depends on whether the key was used before.
    def once(self, write: Write[Any], key: str | None, fingerprint: str = "same") -> Write[Any]:
        """The write with an idempotency key, if one is given."""
        if key is None:
            return write
        return IdempotentWrite(self.tenant, IdempotentRequest(key, fingerprint, 200), write, sent)

    def publish(self, kind: str = "usual", **more: Any) -> WorkRow:
        return self.store.recorder.write(self.market.publish(self.actor, parse_work(written(kind, **more))))

    def award(self, work_id: str, agent: str = "a1", contract_id: str | None = None, **more: Any) -> Contract:
        chosen = contract_id or self.store.surroundings.new_id("con")
        return self.done(AwardContract(self.request(), chosen, work_id, agent, **more)).contract

    def given(self, kind: str = "usual", agent: str = "a1", **more: Any) -> Contract:
        """A contract on new work."""
        return self.award(self.publish(kind, **more).id, agent)

    # Any: a CompleteContract, or one with an idempotency key.
    def handed_in(
        self,
        contract_id: str,
        text: str = GOOD,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        **more: Any,
    ) -> Any:
        """An output, judged and ready to be written."""
        case = self.market.find_contract(self.actor, contract_id)
        handed = HandedIn({"text": text}, metadata or {}, **more)
        return self.once(self.market.completion_sync(self.request(key), case, handed), key)

    def complete(
        self, contract_id: str, text: str = GOOD, metadata: Mapping[str, Any] | None = None
    ) -> ContractSnapshot:
        return self.done(self.handed_in(contract_id, text, metadata))

    def move(self, name: str, contract_id: str, reason: str = "because", key: str | None = None) -> Write[Any]:
        """Any other move by its name."""
        made: dict[str, Callable[[], Write[Any]]] = {
            "start": lambda: StartContract(self.request(key), contract_id),
            "settle": lambda: SettleContract(self.request(key), contract_id),
            "release": lambda: ReleaseContract(self.request(key), contract_id, reason, b"s" * 16),
            "void": lambda: VoidContract(self.request(key), contract_id, reason),
            "reverse": lambda: ReverseContract(self.request(key), contract_id, reason),
            "dispute": lambda: DisputeContract(self.request(key), contract_id, reason),
            "uphold": lambda: ResolveDispute(self.request(key), contract_id, Decision.UPHOLD, reason),
            "take back": lambda: ResolveDispute(self.request(key), contract_id, Decision.REVERSE, reason),
            "undo": lambda: ResolveDispute(self.request(key), contract_id, Decision.VOID, reason),
        }
        return self.once(made[name](), key)

    def adjust(self, contract_id: str, micros: int, reason: str = "because", key: str | None = None) -> Write[Any]:
        """A dispute, settled on an amount."""
        settled_on = SettlementAmount(micros)
        return self.once(
            ResolveDispute(self.request(key), contract_id, Decision.ADJUST, reason, settled_on), key, str(micros)
        )

    def do(self, name: str, contract_id: str, reason: str = "because") -> ContractSnapshot:
        return self.done(self.move(name, contract_id, reason))

    # Any: the caller knows that it is a transition.
    def done(self, write: Write[Any]) -> ContractSnapshot:
        """What a move that is not asked for again is answered."""
        answer = self.store.recorder.write(write)
        assert isinstance(answer, ContractSnapshot)
        return answer

    def rescored(self, contract_id: str) -> AddVersions:
        """One more verdict that says the same as the last."""
        verdicts = tables.verdicts
        with self.store.database.reading() as connection:
            contract = contracts.find(connection, Scope(self.tenant), contract_id)
            mine = (verdicts.c.tenant == self.tenant) & (verdicts.c.outcome_id == contract.outcome_id)
            row = connection.execute(select(verdicts).where(mine).order_by(verdicts.c.version.desc())).first()
            assert row is not None
            body = criteria_body(connection, self.tenant, row.criteria_digest)
        result = result_from(row.result)
        assert result is not None
        return AddVersions(self.tenant, body, (NewVersion(row.outcome_id, row.version, result, b"r" * 16),), "again")

    def standing(self, contract_id: str) -> ContractSnapshot:
        with self.store.database.reading() as connection:
            return contracts.load_snapshot(connection, Scope(self.tenant), contract_id)

    def broken(self) -> list[str]:
        """What is wrong with the books of this tenant."""
        with self.store.database.reading() as connection:
            return find_violations(books(connection, self.tenant))


def sent(standing: ContractSnapshot) -> bytes:
    """A standing as a buyer is answered."""
    return contracts.encode(contracts.to_contract_view(standing))


# Any: rows of all kinds.
def everything(store: Store, tenant: str) -> dict[str, list[Any]]:
    """Every row that is this tenant's, and how far the log has come."""
    with store.database.reading() as connection:
        return {
            name: sorted(map(repr, connection.execute(query, {"whose": tenant}))) for name, query in OF_A_TENANT.items()
        } | {"log_state": [*map(repr, connection.execute(select(tables.log_state)))]}
