"""The demo's marketplace: one work, three agents, real records in a temporary folder."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from meruit.cli.shared.contracts import command_line_actor, write_transition
from meruit.cli.terminal import print_table, say
from meruit.cli.views.contract import amount, describe_violations, is_held, print_contract_state
from meruit.contracts.invariants import find_violations
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.records import Actor, Balance, ContractRequest, ContractSnapshot, balances, books
from meruit.contracts.records import to_contract_view as view
from meruit.contracts.transitions import AwardContract, StartContract, VoidContract
from meruit.documents.authoring import parse_work
from meruit.governance.dossier import HandedIn
from meruit.model.contract import WorkSubmission
from meruit.model.money import as_micros
from meruit.model.numbers import exact, in_units
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.verify.engine import VerificationEngine

AGENTS = {
    "honest": "does the work well; its bonuses reach the cap",
    "weak": "quick but incomplete: it pays a penalty and earns the bonus for speed",
    "cheating": "submits the private reference, canary included: every criterion is met, but governance rejects it",
}
VOIDED = "the output contains the canary of the private reference"
A_DAY = datetime(2026, 3, 20, 9, 0, tzinfo=UTC)
"""A fixed clock, so that every demo prints the same."""
ESCROW = "escrow:"


class Dealing(msgspec.Struct, frozen=True):
    """One agent's contract, from the award to its end."""

    agent: str
    completed: ContractSnapshot
    """After the output was judged."""
    ended: ContractSnapshot
    """After the operator's decision, if one was needed."""


class MarketDay(msgspec.Struct, frozen=True):
    """The contracts of the day, and the books at its end."""

    work: WorkSubmission
    dealings: Sequence[Dealing]
    balances: Sequence[Balance]
    """Balances; all escrow accounts are added up to one."""
    broken: Sequence[str]

    def sums(self) -> dict[str, int]:
        """The sum of all balances, by currency."""
        sums: Counter[str] = Counter()
        for one in self.balances:
            sums[one.currency] += one.micros
        return dict(sums)

    # Any: JSON for programs.
    def to_dict(self) -> dict[str, Any]:
        """The day as JSON, without ids and timestamps."""
        return {
            "work": self.work.title,
            "agents": [_dealing_to_dict(one) for one in self.dealings],
            "balances": [
                {"account": one.account, "currency": one.currency, "balance": in_units(one.micros)}
                for one in self.balances
            ],
            "sums": {currency: in_units(micros) for currency, micros in self.sums().items()},
            "broken": self.broken,
        }


def _dealing_to_dict(dealing: Dealing) -> dict[str, Any]:
    whole = view(dealing.ended)
    outcome = None if whole.outcome is None else msgspec.structs.asdict(whole.outcome)
    return {
        "agent": dealing.agent,
        "outcome": {name: value for name, value in (outcome or {}).items() if name != "outcome_id"},
        "held": dealing.completed.contract.hold_reason,
        "voided": VOIDED if dealing.ended is not dealing.completed else "",
        "state": whole.state,
        "escrow": whole.escrow,
        "settlement": whole.settlement,
    }


def run_market_day(engine: VerificationEngine, read: Callable[[str], str]) -> MarketDay:
    """Publish the work, let each agent do it, void what is held, and check the books."""
    work = parse_work(read("work.yaml"), "marketplace/work.yaml")
    with TemporaryDirectory(prefix="meruit-demo-") as folder:
        store = Store.open(Location(Path(folder)), ClockAndEntropy(clock=lambda: A_DAY))
        try:
            market, actor = Marketplace(Registrar(engine, store)), command_line_actor("default")
            published = store.recorder.write(market.publish(actor, work))
            dealings = [_deal(market, actor, published.id, agent, read) for agent in AGENTS]
            with store.database.reading() as connection:
                found, recorded = balances(connection, actor.tenant, escrows=True), books(connection, actor.tenant)
        finally:
            store.close()
    return MarketDay(work=work, dealings=dealings, balances=_escrows_together(found), broken=find_violations(recorded))


def _deal(market: Marketplace, actor: Actor, work_id: str, agent: str, read: Callable[[str], str]) -> Dealing:
    store, request = market.store, ContractRequest(actor)
    made = write_transition(
        store,
        AwardContract(request=request, contract_id=store.surroundings.new_id("con"), work_id=work_id, agent_id=agent),
    ).contract
    write_transition(store, StartContract(request, made.id))
    completed = hand_in(market, actor, made.id, agent, read)
    if is_held(completed.contract):
        return Dealing(
            agent=agent,
            completed=completed,
            ended=write_transition(store, VoidContract(request=request, contract_id=made.id, reason=VOIDED)),
        )
    return Dealing(agent=agent, completed=completed, ended=completed)


def hand_in(
    market: Marketplace, actor: Actor, contract_id: str, agent: str, read: Callable[[str], str]
) -> ContractSnapshot:
    """Hand in the agent's output for a contract that it started."""
    output, metadata = (msgspec.json.decode(read(f"{agent}{end}.json")) for end in ("", ".metadata"))
    handed, contract = HandedIn(output, metadata), market.find_contract(actor, contract_id)
    return write_transition(market.store, market.completion_sync(ContractRequest(actor), contract, handed))


def _escrows_together(found: Sequence[Balance]) -> list[Balance]:
    held: Counter[str] = Counter()
    for one in found:
        if one.account.startswith(ESCROW):
            held[one.currency] += one.micros
    others = [one for one in found if not one.account.startswith(ESCROW)]
    return [*others, *(Balance("escrow", currency, micros) for currency, micros in held.items())]


def print_market_day(day: MarketDay) -> None:
    """Print the contract of each agent, then the balances."""
    terms = day.work.terms_in_force()
    fee = f"{float(exact(terms.platform_fee_rate) * 100):g} %"
    say(f"\n== marketplace: {day.work.title}, for {day.work.consumer_id}\n")
    say(
        f"{amount(as_micros(terms.cpc_rate or 0), terms.currency)} for completion, bonuses of at most "
        f"{amount(as_micros(terms.max_cpa_total or 0), terms.currency)}, {fee} of the price to the platform"
    )
    for dealing in day.dealings:
        say(f"\n== marketplace, the {dealing.agent} agent: {AGENTS[dealing.agent]}\n")
        print_contract_state(dealing.completed, verdict=True, called="the contract")
        if dealing.ended is not dealing.completed:
            say(f"\nthe operator voids it: {VOIDED}")
            print_contract_state(dealing.ended, called="the contract")
    say("\n== marketplace, the books\n")
    print_table(
        ("account", "currency", "balance"), [(one.account, one.currency, in_units(one.micros)) for one in day.balances]
    )
    sums = ", ".join(amount(micros, currency) for currency, micros in day.sums().items())
    say(f"\nall balances together: {sums}")
    for what in day.broken:
        say(what)
    say(f"{describe_violations(len(day.broken))}: {len(day.dealings)} contracts")
