"""Fill a store with the demo's stories and some hundred cases, spread over the last 30 days."""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice

import msgspec
from pydantic import BaseModel

from meruit.app import build_engine
from meruit.cli.demo import usage as metered
from meruit.cli.demo.clinic import run_benchmark
from meruit.cli.demo.marketplace import hand_in
from meruit.cli.demo.support_replies import CRITERIA, SEED, make_cases
from meruit.cli.shared.contracts import command_line_actor, write_transition
from meruit.config import Settings
from meruit.contracts import records as contracts
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.records import ContractRequest
from meruit.contracts.transitions import AwardContract, DisputeContract, SettleContract, StartContract
from meruit.documents.authoring import parse_criteria, parse_work
from meruit.errors import MeruitError, VerificationRejected
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.gate.agent import Agent
from meruit.gate.client import queue_run
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.worker import run_worker
from meruit.model.access import DEFAULT_TENANT
from meruit.model.outcome import Labels
from meruit.outcomes.service import Registrar, Submission
from meruit.playground.billing.server import ProviderServer
from meruit.review.service import ReviewRequest, Reviews
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.testing import ScriptedModel, calls, says, submits

DAYS = 30
WORKERS = (("summarisation", ("honest", "hasty", "silent")), ("classification", ("careful", "boastful")))
LABELLER = "mara"
DISPUTE = "the summary does not name the school"
Read = Callable[[str, str], str]
"""Reads a file of a story."""


class Amounts(msgspec.Struct, frozen=True):
    """How much of each there is."""

    cases: int = 300
    outcomes_a_day: int = 6
    finished: tuple[str, ...] = ("heron-2", "heron-3")
    running: str = "heron-4"
    attempts: int = 2
    """Of each agent at each task of the benchmark."""
    labels: int = 24
    """Of the review that is under way."""


class DemoTimeline(metered.DemoClock):
    """The demo's clock: it begins 30 days ago, and ends now."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now - timedelta(days=DAYS))
        self.end = now

    def pass_by(self, **length: float) -> None:
        """Let time pass, but not beyond the present."""
        self.now = min(self.now + timedelta(**length), self.end)


def fill_store(
    location: Location,
    read: Read,
    now: datetime,
    amounts: Amounts = Amounts(),  # noqa: B008 - frozen
) -> None:
    """Fill a new store; the records are dated within the 30 days before `now`."""
    clock = DemoTimeline(now)
    store = Store.open(location, ClockAndEntropy(clock=clock))
    try:
        registrar = Registrar(build_engine(Settings(), clock=clock), store)
        with ProviderServer(clock=clock) as provider:
            for name in metered.AGENTS:
                metered.record_run(store, provider, name, clock)
            asyncio.run(metered.observe(store, provider, clock))
        _deal(Marketplace(registrar), read, clock)
        _verify_daily(registrar, read, clock, amounts)
        for agent in amounts.finished:
            _evaluate(registrar, agent, amounts.cases, clock)
        asyncio.run(run_benchmark(store, clock.pass_by, amounts.attempts))
        asyncio.run(_run_agents(store))
        _review(store, amounts)
        clock.now = clock.end - timedelta(minutes=6)
        _begin_evaluation(registrar, amounts.running, amounts.cases)
        clock.now = clock.end
    finally:
        store.close()


def _verify_daily(registrar: Registrar, read: Read, clock: DemoTimeline, amounts: Amounts) -> None:
    """Outcomes of both verification stories, some on each day; fewer at weekends."""
    chance = random.Random(SEED)  # noqa: S311 - the same in every demo
    compiled = {story: registrar.compile(parse_criteria(read(story, "criteria.yaml"), story)) for story, _ in WORKERS}
    while clock.now < clock.end - timedelta(days=1, hours=1):
        clock.pass_by(days=1)
        number = amounts.outcomes_a_day if clock.now.weekday() < 5 else amounts.outcomes_a_day // 3
        for _ in range(number):
            story, agents = chance.choice(WORKERS)
            agent = chance.choice(agents)
            work = Submission(
                input=msgspec.json.decode(read(story, "input.json")),
                output=msgspec.json.decode(read(story, f"{agent}.json")),
                metadata=msgspec.json.decode(read(story, f"{agent}.metadata.json")),
                labels=Labels(agent_id=agent, domain=story, consumer_id="town-council"),
            )
            registrar.record_sync(DEFAULT_TENANT, registrar.judge_sync(compiled[story], work))


def _deal(market: Marketplace, read: Read, clock: DemoTimeline) -> None:
    """Contracts in several states: settled, held by governance, disputed, at work, and offered."""
    store, actor = market.store, command_line_actor(DEFAULT_TENANT)
    work = store.recorder.write(market.publish(actor, parse_work(read("marketplace", "work.yaml"), "work.yaml")))
    request = ContractRequest(actor)
    for agent in ("honest", "weak", "cheating", "honest", "weak"):
        clock.pass_by(hours=7)
        made = write_transition(
            store,
            AwardContract(
                request=request, contract_id=store.surroundings.new_id("con"), work_id=work.id, agent_id=agent
            ),
        )
        write_transition(store, StartContract(request, made.contract.id))
        clock.pass_by(minutes=20)
        completed = hand_in(market, actor, made.contract.id, agent, lambda name: read("marketplace", name))
        if agent == "weak":
            clock.pass_by(hours=2)
            write_transition(store, DisputeContract(request=request, contract_id=completed.contract.id, reason=DISPUTE))
    clock.pass_by(days=3)
    for agent in ("honest", "weak"):
        started = write_transition(
            store,
            AwardContract(
                request=request, contract_id=store.surroundings.new_id("con"), work_id=work.id, agent_id=agent
            ),
        )
        if agent == "honest":
            write_transition(store, StartContract(request, started.contract.id))
    _settle_due(market, request)


def _settle_due(market: Marketplace, request: ContractRequest) -> None:
    """Settle what may be settled; the others stay as they are."""
    with market.store.database.reading() as connection:
        found = contracts.page(connection, request.actor.scope)
    for one in found.entries:
        try:
            write_transition(market.store, SettleContract(request, one.id))
        except MeruitError:
            continue


def _evaluate(registrar: Registrar, agent: str, number: int, clock: DemoTimeline) -> None:
    evaluator = Evaluator(registrar, DEFAULT_TENANT)
    compiled = evaluator.compile(CRITERIA)
    tags = {"agent": agent, "criteria": "support@7"}
    started = evaluator.start(f"support-replies, {agent}", compiled, tags=tags, planned=number)
    run_cases(evaluator, started, compiled, make_cases(agent, number))
    clock.pass_by(hours=3)


def _begin_evaluation(registrar: Registrar, agent: str, number: int) -> None:
    """An evaluation that is half done."""
    evaluator = Evaluator(registrar, DEFAULT_TENANT)
    compiled = evaluator.compile(CRITERIA)
    started = evaluator.start(
        f"support-replies, {agent}", compiled, tags={"agent": agent, "criteria": "support@7"}, planned=number
    )
    judged = [evaluator.judge(compiled, case) for case in islice(make_cases(agent, number), number // 2)]
    evaluator.record(started, judged)


def _review(store: Store, amounts: Amounts) -> None:
    """Two reviews of the same cases: one is done, and one waits for a few more labels."""
    reviews, evaluations = Reviews(store, DEFAULT_TENANT), Evaluations(store, DEFAULT_TENANT)
    before = None
    for agent in amounts.finished:
        wanted = ReviewRequest(
            f"replies of {agent}",
            f"support-replies, {agent}",
            question="Would you send this reply as it is?",
            random=0 if before else amounts.labels,
            same_cases_as=before,
        )
        review = reviews.create(wanted, by=LABELLER)
        evaluation = evaluations.find(review.evaluation_id)
        draws = reviews.draws(review)
        yes, no = (next(one.name for one in review.terms.choices if one.meets is meets) for meets in (True, False))
        for draw in draws[: len(draws) * 2 // 3] if before else draws:
            case = evaluations.case(evaluation, draw.case_id, draw.repeat).summary
            # People and criteria differ in one case of eight.
            label = case.success is (draw.number % 8 != 3)
            reviews.label(review, draw.number, labeller=LABELLER, choice=yes if label else no, by=LABELLER)
        before = review.name


class TidePlan(BaseModel):
    """When the ferry leaves."""

    departure: str
    reason: str

    def verify(self) -> "TidePlan":
        """Accept a departure at high water."""
        if self.departure != "16:40":
            raise VerificationRejected(
                f"{self.departure} is at low water; look the tide up again", code="low_water", metadata={"tide_m": 0.4}
            )
        return self


def look_up_tide(harbour: str) -> str:
    """Look up the tide of a harbour."""
    return f"{harbour}: high water 16:40, low water 10:25"


async def _run_agents(store: Store) -> None:
    """Agent runs: one that is accepted at its third attempt, one whose attempts are used up, one not begun."""
    asks = says("I look up the tide first.", calls("look_up_tide", harbour="Wick"), tokens=(412, 31))
    script = [
        asks,
        submits("call_2", departure="10:30", reason="earliest after ten"),
        submits("call_3", departure="12:00", reason="half tide"),
        submits("call_4", departure="16:40", reason="high water"),
    ]
    wrong = [asks, *(submits(f"call_{n}", departure=f"{9 + n}:00", reason="a guess") for n in range(2, 5))]
    for name, lines, attempts in (("weirs", script, 5), ("stilt", wrong, 3)):
        agent = Agent(name, "Say when the ferry leaves.", ScriptedModel(lines), [look_up_tide], TidePlan, attempts)
        queue_run(store, agent, "When does the ferry leave Wick on Thursday?", labels={"client": "ferry-line"})
        await run_worker(store, AgentRoster([agent]), until_idle=True)
    queue_run(store, "wader", "When does the ferry leave Oban?")
