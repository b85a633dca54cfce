"""Contracts that ended in every way, made by a real store: what auditors are handed about belief and money."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from meruit import SuccessCriteria, VerificationEngine
from meruit.audit.export import export
from meruit.contracts.lifecycle import Decision
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.store import read as contracts
from meruit.contracts.store.transaction import Actor, ContractRequest
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ExpireContracts,
    RecordInputRead,
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
from meruit.model.contract import Contract, ContractState
from meruit.model.governance import Action, Disposition, Flag, GovernanceResult, Policy
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar
from meruit.outcomes.store.erase import erase
from meruit.outcomes.store.read import OutcomeFilter
from meruit.store.recorder import Write
from meruit.store.store import Store

ENGINE = VerificationEngine()
REFERENCE = "the quick brown fox jumps over the lazy dog " * 4
CANARY = "canary-51c0ffee"
OWN_WORDS = {"text": "the quick brown fox runs over the lazy dog " * 4}
COPIED = {"text": REFERENCE}
"""What governance holds."""
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3, "bonus": 0.03}
ROUGE = {
    "metric": "rougeL",
    "metric_type": "rouge_score",
    "comparison": "gte",
    "threshold": 0.5,
    "bonus": 0.02,
    "penalty": 0.01,
}
LATENCY = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.01}
CRITERIA = {"criteria": [WORDS, ROUGE]}
STRICTER = {"criteria": [WORDS, {**ROUGE, "threshold": 0.99}]}
TERMS = {"cpc_rate": "0.05", "platform_fee_rate": 0.15}
ADJUSTED_MICROS = 45_001
HOLD_MICROS = 90_000
"""Of the usual work: 0.05 for completion, and of 0.05 in bonuses at most 0.04."""


class Stranger:
    """Somebody else who is asked whether outcomes can be believed, and always says the same."""

    def __init__(self, answer: GovernanceResult) -> None:
        self.answer = answer

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        return self.answer


CONTENT = GovernanceResult(valid=True, flags=["looked_at"], disposition=Disposition.CLEAR, confidence=1)
DOUBTFUL = GovernanceResult(
    valid=True, flags=[Flag("odd_hours", "1", Action.HOLD)], disposition=Disposition.HOLD, confidence=0.9
)


class Stall(NamedTuple):
    """A marketplace of one tenant, and whoever does everything in it."""

    store: Store
    tenant: str

    @property
    def request(self) -> ContractRequest:
        return ContractRequest(Actor(Scope(self.tenant), "command line"))

    def publish(self, criteria: Mapping[str, Any] | None = CRITERIA, **terms: Any) -> str:
        """Some work; its id."""
        submitted = {
            "title": "tell it again",
            "input": {"reference": REFERENCE},
            "canaries": [CANARY],
            "terms": {**TERMS, **terms},
            **({} if criteria is None else {"success_criteria": criteria, "budget": {"max_bonus": "0.04"}}),
        }
        write = self.market().publish(self.request.actor, parse_work(submitted))
        work_id: str = self._written(write).id
        return work_id

    def market(self, **how: Any) -> Marketplace:
        return Marketplace(Registrar(ENGINE, self.store), **how)

    def move(self, move: Write[Any]) -> Contract:
        contract: Contract = self._written(move).contract
        return contract

    # Any: works and standings alike; no request here comes twice, so none is a replay.
    def _written(self, write: Write[Any]) -> Any:
        return self.store.recorder.write(write)

    def award(self, work_id: str, agent: str) -> str:
        contract_id = self.store.surroundings.new_id("con")
        return self.move(AwardContract(self.request, contract_id, work_id, agent)).id

    def complete(self, contract_id: str, output: Mapping[str, Any] = OWN_WORDS, **how: Any) -> Contract:
        """What it comes to; `how` is whom the marketplace asks."""
        market, handed = self.market(**how), HandedIn(output, {})
        return self.move(
            market.completion_sync(self.request, market.find_contract(self.request.actor, contract_id), handed)
        )

    def done(self, work_id: str, agent: str, output: Mapping[str, Any] = OWN_WORDS, **how: Any) -> str:
        """A contract that was awarded and completed; its id."""
        return self.complete(self.award(work_id, agent), output, **how).id

    def released(self, contract_id: str) -> Contract:
        return self.move(ReleaseContract(self.request, contract_id, "looked fine", self.store.surroundings.entropy(16)))

    def judged_again(self, contract_id: str, criteria: Mapping[str, Any]) -> None:
        """Another version of the verdict, by these criteria."""
        done = rescore(
            self.store,
            ENGINE,
            self.tenant,
            SuccessCriteria.model_validate(criteria),
            narrowed=OutcomeFilter(contract_id=contract_id),
            reason="the terms were read again",
            runner=LocalRunner(),
            now=self.store.surroundings.clock(),
            progress=lambda _done, _all: None,
        )
        assert done.rescored == 1


def settled(stall: Stall) -> str:
    contract_id = stall.award(stall.publish(), "ada")
    stall.move(StartContract(stall.request, contract_id))
    assert stall.complete(contract_id).state is ContractState.SETTLED
    return contract_id


def held(stall: Stall) -> str:
    return stall.done(stall.publish(), "bea", COPIED)


def released(stall: Stall) -> str:
    return stall.released(stall.done(stall.publish(), "cid", COPIED)).id


def resettled(stall: Stall) -> str:
    """Paid, taken back, judged by stricter criteria, then by the contract's again, and paid for that."""
    contract_id = stall.done(stall.publish(), "dan")
    stall.move(ReverseContract(stall.request, contract_id, "paid too early"))
    stall.judged_again(contract_id, STRICTER)
    stall.judged_again(contract_id, CRITERIA)
    assert stall.move(SettleContract(stall.request, contract_id)).settlement == 2
    return contract_id


def held_again(stall: Stall) -> str:
    """What governance holds stays held by whatever criteria it is judged."""
    contract_id = held(stall)
    stall.judged_again(contract_id, STRICTER)
    stall.judged_again(contract_id, CRITERIA)
    return stall.released(contract_id).id


def leaking(stall: Stall) -> str:
    """An output with what was planted in it."""
    contract_id = stall.done(stall.publish(), "lou", {"text": f"{OWN_WORDS['text']} {CANARY}"})
    return stall.move(VoidContract(stall.request, contract_id, "it saw the reference")).id


def given_up(stall: Stall) -> str:
    """Judged, not paid, and called off."""
    return stall.move(VoidContract(stall.request, unsettled(stall), "no longer wanted")).id


def voided(stall: Stall) -> str:
    return stall.move(VoidContract(stall.request, held(stall), "copied")).id


def upheld(stall: Stall) -> str:
    contract_id = settled(stall)
    stall.move(DisputeContract(stall.request, contract_id, "not what was meant"))
    return stall.move(ResolveDispute(stall.request, contract_id, Decision.UPHOLD, "it is")).id


def disputed(stall: Stall) -> str:
    return stall.move(DisputeContract(stall.request, settled(stall), "not what was meant")).id


def taken_back(stall: Stall) -> str:
    return stall.move(ResolveDispute(stall.request, disputed(stall), Decision.REVERSE, "right")).id


def called_off(stall: Stall) -> str:
    return stall.move(ResolveDispute(stall.request, disputed(stall), Decision.VOID, "right")).id


def adjusted(stall: Stall) -> str:
    """Paid, disputed, and settled on less."""
    resolve = ResolveDispute(
        stall.request, disputed(stall), Decision.ADJUST, "half was right", SettlementAmount(ADJUSTED_MICROS, "USD")
    )
    return stall.move(resolve).id


def adjusted_unpaid(stall: Stall) -> str:
    """Held by governance, disputed, and settled on a part; then on nothing, after one more dispute."""
    contract_id = held(stall)
    for micros in (ADJUSTED_MICROS, 0):
        stall.move(DisputeContract(stall.request, contract_id, "it is my own text"))
        amount = SettlementAmount(micros)
        stall.move(ResolveDispute(stall.request, contract_id, Decision.ADJUST, "as agreed", amount))
    return contract_id


def erased(stall: Stall) -> str:
    contract_id = settled(stall)
    with stall.store.database.reading() as connection:
        outcome_id = contracts.find(connection, Scope(stall.tenant), contract_id).outcome_id
    erase(stall.store, stall.tenant, outcome_id or "", "the patient asked")
    return contract_id


def without_criteria(stall: Stall) -> str:
    return stall.done(stall.publish(None), "eli")


def unmeasured(stall: Stall) -> str:
    """Held because nobody knows how long it took, and released by a word, without another version."""
    work_id = stall.publish({"criteria": [WORDS, LATENCY]})
    return stall.released(stall.done(work_id, "fay")).id


def timed(stall: Stall, agent: str = "mia", **terms: Any) -> str:
    """Handed in by the agent itself, which read the input and reported its start; the time is the service's."""
    work_id = stall.publish({"criteria": [WORDS, {**LATENCY, "required": False}]}, **terms)
    contract_id = stall.award(work_id, agent)
    own = Actor(Scope(stall.tenant, agent, only_own=True), f"key of {agent}")
    assert stall.store.recorder.write(RecordInputRead(own, work_id)) == 1
    stall.move(StartContract(ContractRequest(own), contract_id))
    market, handed = stall.market(), HandedIn(OWN_WORDS, {"duration_ms": 10}, by_agent=True)
    return stall.move(market.completion_sync(ContractRequest(own), market.find_contract(own, contract_id), handed)).id


def timed_from_start(stall: Stall) -> str:
    return timed(stall, "ned", latency_from="start")


def unsettled(stall: Stall) -> str:
    return stall.done(stall.publish(settle="on_request"), "gus")


def asked_two(stall: Stall) -> str:
    return stall.done(stall.publish(), "hal", remote=Stranger(CONTENT))


def asked_another(stall: Stall) -> str:
    return stall.done(stall.publish(), "ida", policy=None, remote=Stranger(DOUBTFUL))


def asked_nobody(stall: Stall) -> str:
    return stall.done(stall.publish(), "jon", COPIED, policy=None)


def asked_few(stall: Stall) -> str:
    policy = Policy(off=["reference_copy"], limits={"retry_farming": {"attempts": 9}})
    return stall.done(stall.publish(), "kim", COPIED, policy=policy)


ENDINGS: dict[str, Callable[[Stall], str]] = {
    "settled": settled,
    "held": held,
    "released": released,
    "resettled": resettled,
    "held again": held_again,
    "voided": voided,
    "upheld": upheld,
    "disputed": disputed,
    "taken back": taken_back,
    "called off": called_off,
    "adjusted": adjusted,
    "adjusted unpaid": adjusted_unpaid,
    "paid and erased": erased,
    "without criteria": without_criteria,
    "unmeasured": unmeasured,
    "timed": timed,
    "timed from start": timed_from_start,
    "unsettled": unsettled,
    "leaking": leaking,
    "given up": given_up,
    "asked two": asked_two,
    "asked another": asked_another,
    "asked nobody": asked_nobody,
    "asked few": asked_few,
}


def outcome_of(stall: Stall, ending: str) -> str:
    """A contract that ended so; the id of its outcome."""
    contract_id = ENDINGS[ending](stall)
    with stall.store.database.reading() as connection:
        return contracts.find(connection, Scope(stall.tenant), contract_id).outcome_id or ""


def bundles_of(stall: Stall, endings: Iterable[str]) -> dict[str, bytes]:
    """Contracts that ended so, each as a bundle."""
    ids = {ending: outcome_of(stall, ending) for ending in endings}
    # The clock of a test is not the machine's: nobody waits for the next checkpoint.
    return {
        ending: export(stall.store, Scope(stall.tenant), found, sleep=lambda _seconds: None)
        for ending, found in ids.items()
    }


def expired(stall: Stall, later: Callable[[timedelta], None]) -> Contract:
    """A contract that nobody delivered on: it has no outcome, and hence no bundle."""
    contract_id = stall.award(stall.publish(deadline_hours=1), "lea")
    later(timedelta(hours=2))
    assert stall.store.recorder.write(ExpireContracts("the clock")) == 1
    with stall.store.database.reading() as connection:
        return contracts.find(connection, Scope(stall.tenant), contract_id)
