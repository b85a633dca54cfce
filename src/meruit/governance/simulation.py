"""Measure the governance rules on a simulated market whose honest and cheating agents are known.

The result holds for these kinds of agents. The market has no honest work whose long answer is fully determined by its
input, and no boilerplate that honest agents share; on such work, rules that compare texts do worse.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from meruit.governance.attack_trial import AttackTrial
from meruit.governance.attacks import TRIES, try_attacks
from meruit.governance.evaluate import govern
from meruit.governance.history import (
    AgentHistory,
    TryMark,
    add_try,
    baselines,
    find_near_tries,
    is_first_output,
    is_near,
    recent,
    sketch,
    update_history,
    word_marks,
)
from meruit.model.evidence import Provenance
from meruit.model.governance import (
    Action,
    Dealings,
    Disposition,
    Dossier,
    Flag,
    GovernanceResult,
    History,
    MetricFact,
    Policy,
)
from meruit.model.kinds import MetricType
from meruit.model.record import Record
from meruit.registry import flags

TEN_THOUSAND = 10_000
OUTCOMES_PER_AGENT = 60
OUTCOMES_PER_TRY = 200
"""A small trial also tries each attack less often."""
CHEAT_SHARE = 0.014
"""The share of agents of each kind of cheat."""
DAYS = 45
"""The duration of the simulation; longer than the window of a baseline."""
FIRST_DAY = 20_000
DAY_S = 86_400
CONSUMERS = 40
ACCURACY_MIN = 0.9
BONUS_FROM = 0.95
BONUS_MICROS = 500_000
LATENCY_MAX_MS = 5_000.0
MAX_SKETCHES = 20
"""How many attempts at one input are compared."""
WORDS = tuple(
    f"{first}{second}" for first in "bcdfghjklmnprstvw" for second in ("alo", "eri", "ino", "otu", "uma", "yse")
)
PROBING = "probing"
SHORT_ANSWERS = ("yes", "no", "42", "Paris", "none of these")

HONEST = (
    "ordinary",
    "specialist",
    "repeated inputs",
    "short answers",
    "loyal customer",
    "jittery clock",
    "percent claims",
    "rounded claims",
    "near the threshold",
    "few items graded",
)
"""Kinds of honest agents; all but the first look like a kind of cheat."""


class RuleTrial(Record, frozen=True):
    """The performance of one rule."""

    rule: str
    action: Action
    """Its default action."""
    cheats: int
    """Outcomes that cheat in the way the rule is about."""
    flagged: int
    """Outcomes that the rule flagged; those that are neither true nor false positives cheat in another way."""
    true_positives: int
    false_positives: int
    """Honest outcomes that were flagged."""
    precision: float | None
    """True positives as a share of true and false positives; None without any."""
    recall: float | None
    """Flagged outcomes as a share of its cheats; None without any. First occurrences count as missed."""
    false_per_10k: float
    """False positives per 10,000 honest outcomes."""
    held_honest: int
    """Honest outcomes that this rule held."""
    invalidated_honest: int


class KindTrial(Record, frozen=True):
    """The result for one kind of honest agents."""

    kind: str
    outcomes: int
    flagged: int
    held: int
    invalidated: int


class TrialReport(Record, frozen=True):
    """The performance of the rules, each alone and all together."""

    seed: int
    outcomes: int
    honest: int
    cheating: int
    held_honest: int
    invalidated_honest: int
    held_honest_per_10k: float
    invalidated_honest_per_10k: float
    cheating_clear: int
    """Cheating outcomes that were neither held nor invalid; rules that only flag do not stop them."""
    rules: list[RuleTrial]
    kinds: list[KindTrial]
    attacks: list[AttackTrial]
    """Attackers who know the rules, and honest behaviour that resembles theirs."""


class SimulatedAgent(msgspec.Struct, frozen=True):
    """An agent of the market."""

    id: str
    kind: str
    """One of the honest kinds, or the rule that its cheating is about."""
    skill: float
    """Its usual accuracy."""
    favourite: str
    """The consumer it deals with most."""
    loyalty: float
    """How often it does."""


class SimulatedOutcome(msgspec.Struct, frozen=True):
    """One outcome, with the truth about it."""

    agent: SimulatedAgent
    dossier: Dossier
    """The dossier without its history, which the market adds."""
    output: str
    input_id: str
    evidence_id: str
    day: int
    cheats: bool = False


def trial(
    seed: int,
    outcomes: int,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    *,
    progress: Callable[[int, int], None] | None = None,
) -> TrialReport:
    """Simulate `outcomes` outcomes of honest and cheating agents, and count what the rules find."""
    rng = random.Random(seed)  # noqa: S311 - the same market for the same seed, nothing secret
    agents = [*_agents(rng, outcomes)]
    market = SimulatedMarket()
    count = TrialCounts()
    for number in range(outcomes):
        deed = _simulate_outcome(rng, rng.choice(agents), market, number, FIRST_DAY + number * DAYS // outcomes)
        dossier = market.add_history(deed)
        result = govern(dossier, policy)
        market.remember(deed, dossier, result)
        count.add(deed, result)
        if progress is not None:
            progress(number + 1, outcomes)
    return count.report(seed, try_attacks(seed, min(TRIES, outcomes // OUTCOMES_PER_TRY + 1), policy))


def _agents(rng: random.Random, outcomes: int) -> Iterator[SimulatedAgent]:
    """A few cheats of each kind, the rest honest."""
    wanted = outcomes // OUTCOMES_PER_AGENT
    of_each = max(2, round(wanted * CHEAT_SHARE))
    cheats = [kind for kind in CHEATS if kind != PROBING for _ in range(of_each)]
    rest = max(wanted - len(cheats), len(HONEST))
    kinds = [*cheats, *(HONEST[number % len(HONEST)] for number in range(rest))]
    # They take the places of ordinary agents, so that the other agents stay the same for the same seed.
    for place in [number for number, kind in enumerate(kinds) if kind == HONEST[0]][:of_each]:
        kinds[place] = PROBING
    for number, kind in enumerate(kinds):
        loyal = kind == "loyal customer"
        # Consumers stay with excellent agents too, which earn a bonus nearly every time.
        skill = rng.choice((0.9, 1.0)) if loyal else min(0.96, rng.gauss(0.9, 0.03))
        loyalty = rng.uniform(0.6, 0.97) if loyal else 0.85 if kind == "concentrated_pair" else 0.0
        yield SimulatedAgent(
            id=f"agent-{number}",
            kind=kind,
            skill=skill,
            favourite=f"consumer-{rng.randrange(CONSUMERS)}",
            loyalty=loyalty,
        )


class SimulatedMarket:
    """The state between outcomes, each part looked up by key."""

    def __init__(self) -> None:
        self.memories: defaultdict[str, AgentHistory] = defaultdict(AgentHistory)
        self.given: dict[tuple[str, str], tuple[str, str]] = {}
        """By agent and output, the first input and contract."""
        self.first: dict[str, tuple[str, str]] = {}
        """By output, the first agent and input."""
        self.settled: dict[str, str] = {}
        """By evidence, the contract."""
        self.sketches: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """By agent and input."""
        self.tries: defaultdict[str, list[TryMark]] = defaultdict(list)
        """By agent; all are judged by the same criteria."""
        self.dealt: Counter[tuple[str, ...]] = Counter()
        self.earned: Counter[tuple[str, ...]] = Counter()
        self.last: dict[str, SimulatedOutcome] = {}
        """By agent, what was settled last; a cheat may submit it again."""

    def add_history(self, deed: SimulatedOutcome) -> Dossier:
        """The dossier with its history."""
        agent, dossier = deed.agent, deed.dossier
        memory = self.memories[agent.id]
        margins, accuracies = recent(memory, dossier.metrics)
        given_input, given_contract = self.given.get((agent.id, deed.output), (deed.input_id, ""))
        first_agent, first_input = self.first.get(deed.output, (agent.id, deed.input_id))
        shared = first_agent != agent.id and first_input != deed.input_id
        tries = find_near_tries(self.tries[agent.id], word_marks(deed.output))
        history = History(
            replayed_in=given_contract if given_input != deed.input_id else None,
            shared_with=first_agent if shared else None,
            settled_under=self.settled.get(deed.evidence_id),
            latency_mismatches=memory.mismatches,
            near_duplicates=self._near_duplicates(deed),
            near_tries=tries.near,
            near_tries_failed=tries.failed,
            margins=margins,
            accuracies=accuracies,
            baselines=baselines(memory, {fact.metric for fact in dossier.metrics}, deed.day),
            dealings=self._dealings(agent.id, dossier.consumer_id or ""),
        )
        return replace(dossier, history=history)

    def remember(self, deed: SimulatedOutcome, dossier: Dossier, result: GovernanceResult) -> None:
        """Update the state with one more outcome."""
        agent = deed.agent.id
        mismatch = "latency_mismatch" in result.names
        self.memories[agent] = update_history(self.memories[agent], dossier.metrics, deed.day, mismatch=mismatch)
        if is_first_output(result):
            self.given.setdefault((agent, deed.output), (deed.input_id, dossier.contract_id))
            self.first.setdefault(deed.output, (agent, deed.input_id))
        if result.conclusion is Disposition.CLEAR:
            self.settled.setdefault(deed.evidence_id, dossier.contract_id)
            self.last[agent] = deed
        sketches = self.sketches[agent, deed.input_id]
        if len(sketches) < MAX_SKETCHES:
            sketches.append(sketch(deed.output))
        tries = add_try(self.tries[agent], word_marks(deed.output), passed=dossier.success)
        self.tries[agent] = tries[-MAX_SKETCHES:]
        bonus = any(fact.bonus_micros for fact in dossier.metrics)
        for party in _parties(agent, dossier.consumer_id or ""):
            self.dealt[party] += 1
            self.earned[party] += bonus

    def _near_duplicates(self, deed: SimulatedOutcome) -> int:
        earlier = self.sketches.get((deed.agent.id, deed.input_id))
        if not earlier:
            return 0
        this = sketch(deed.output)
        return sum(is_near(this, other) for other in earlier)

    def _dealings(self, agent: str, consumer: str) -> Dealings:
        return Dealings(
            *(count[party] for party in _parties(agent, consumer) for count in (self.dealt, self.earned)),
        )


def _parties(agent: str, consumer: str) -> tuple[tuple[str, ...], ...]:
    """The pair, the agent, the consumer and everyone."""
    return ("pair", agent, consumer), ("agent", agent), ("consumer", consumer), ()


class TrialCounts:
    """Counts of what the rules found."""

    def __init__(self) -> None:
        self.cheats: Counter[str] = Counter()
        self.flagged: Counter[str] = Counter()
        self.true: Counter[str] = Counter()
        self.false: Counter[str] = Counter()
        self.false_by_action: Counter[tuple[str, Action]] = Counter()
        self.cheats_by_end: Counter[Disposition] = Counter()
        self.honest_by_end: Counter[Disposition] = Counter()
        self.kinds: Counter[str] = Counter()
        self.kinds_flagged: Counter[str] = Counter()
        self.kinds_by_end: Counter[tuple[str, Disposition]] = Counter()

    def add(self, deed: SimulatedOutcome, result: GovernanceResult) -> None:
        """Count one outcome."""
        kind, end = deed.agent.kind, result.conclusion
        raised = {(_rule_of(flag.rule), flag.action) for flag in result.flags if isinstance(flag, Flag)}
        rules = {rule for rule, _ in raised}
        self.flagged.update(rules)
        if deed.cheats:
            self.cheats[kind] += 1
            self.cheats_by_end[end] += 1
            self.true[kind] += kind in rules
            return
        self.false.update(rules)
        self.false_by_action.update(raised)
        self.honest_by_end[end] += 1
        self.kinds[kind] += 1
        self.kinds_flagged[kind] += bool(rules)
        self.kinds_by_end[kind, end] += 1

    def report(self, seed: int, attacks: Sequence[AttackTrial] = ()) -> TrialReport:
        """The report."""
        honest, cheating = self.honest_by_end.total(), self.cheats_by_end.total()
        held, invalidated = self.honest_by_end[Disposition.HOLD], self.honest_by_end[Disposition.INVALID]
        return TrialReport(
            seed=seed,
            outcomes=honest + cheating,
            honest=honest,
            cheating=cheating,
            held_honest=held,
            invalidated_honest=invalidated,
            held_honest_per_10k=_per_10k(held, honest),
            invalidated_honest_per_10k=_per_10k(invalidated, honest),
            cheating_clear=self.cheats_by_end[Disposition.CLEAR],
            rules=[self._rule(rule.name, rule.action, honest) for rule in flags],
            kinds=[self._kind(kind) for kind in HONEST],
            attacks=[*attacks],
        )

    def _rule(self, rule: str, action: Action, honest: int) -> RuleTrial:
        true, false, cheats = self.true[rule], self.false[rule], self.cheats[rule]
        return RuleTrial(
            rule=rule,
            action=action,
            cheats=cheats,
            flagged=self.flagged[rule],
            true_positives=true,
            false_positives=false,
            precision=true / (true + false) if true + false else None,
            recall=true / cheats if cheats else None,
            false_per_10k=_per_10k(false, honest),
            held_honest=self.false_by_action[rule, Action.HOLD],
            invalidated_honest=self.false_by_action[rule, Action.INVALIDATE],
        )

    def _kind(self, kind: str) -> KindTrial:
        held, invalidated = (self.kinds_by_end[kind, end] for end in (Disposition.HOLD, Disposition.INVALID))
        return KindTrial(
            kind=kind, outcomes=self.kinds[kind], flagged=self.kinds_flagged[kind], held=held, invalidated=invalidated
        )


def _rule_of(name: str) -> str:
    """The rule of a flag; some flags have longer names than their rule."""
    return next(part for part in name.split(":") if flags.find(part) is not None)


def _per_10k(some: int, honest: int) -> float:
    return some * TEN_THOUSAND / honest if honest else 0.0


# Honest work.


def _simulate_outcome(
    rng: random.Random, agent: SimulatedAgent, market: SimulatedMarket, number: int, day: int
) -> SimulatedOutcome:
    deed = _honest_outcome(rng, agent, number, day)
    if agent.kind not in CHEATS or not _is_cheat_attempt(rng, deed, market):
        return deed
    return msgspec.structs.replace(CHEATS[agent.kind](rng, deed, market), cheats=True)


def _honest_outcome(rng: random.Random, agent: SimulatedAgent, number: int, day: int) -> SimulatedOutcome:
    """One outcome of an honest agent."""
    input_id, work = f"input-{number}", rng
    if agent.kind == "repeated inputs":
        # A deterministic agent gives the same output for the same input, in a new run.
        input_id = f"input-of-{agent.id}-{rng.randrange(12)}"
        work = random.Random(input_id)  # noqa: S311 - as above
    output = _output(work, agent)
    accuracy = _accuracy(work, agent)
    latency_ms = min(60_000.0, 1000 * rng.lognormvariate(0.2, 0.5))
    impossible = rng.random() < 0.005
    if impossible:
        accuracy = round(accuracy / 2, 4)
    dossier = Dossier(
        contract_id=f"contract-{number}",
        work_id=input_id,
        agent_id=agent.id,
        consumer_id=agent.favourite if rng.random() < agent.loyalty else f"consumer-{rng.randrange(CONSUMERS)}",
        metrics=_facts(accuracy, latency_ms, len(output.split())),
        claims={"accuracy": _claim(rng, agent, accuracy)},
        success=accuracy >= ACCURACY_MIN and latency_ms <= LATENCY_MAX_MS,
        evaluator_before={"tests": "5e1f", "reference": "a0c3"},
        evaluator_after={"tests": "5e1f", "reference": "a0c3"},
        canary_intact=True,
        canaries=3,
        output_chars=len(output),
        reference_similarity=_similarity(rng, agent),
        impossible=impossible,
    )
    timed = replace(dossier, **_times(rng, agent, latency_ms, day), **_usage(rng, output))
    return SimulatedOutcome(
        agent=agent, dossier=timed, output=output, input_id=input_id, evidence_id=f"run-{number}", day=day
    )


def _output(rng: random.Random, agent: SimulatedAgent) -> str:
    if agent.kind == "short answers":
        return rng.choice(SHORT_ANSWERS)
    return " ".join(rng.choices(WORDS, k=rng.randint(25, 60)))


def _accuracy(rng: random.Random, agent: SimulatedAgent) -> float:
    match agent.kind:
        case "specialist":
            return 1.0 if rng.random() < 0.92 else round(rng.uniform(0.94, 1.0), 4)
        case "near the threshold":
            return round(rng.uniform(0.885, 0.935), 4)
        case "few items graded":
            return sum(rng.random() < agent.skill for _ in range(20)) / 20
        case _:
            return round(min(1.0, max(0.0, rng.gauss(agent.skill, 0.03))), 4)


def _claim(rng: random.Random, agent: SimulatedAgent, accuracy: float) -> float:
    match agent.kind:
        case "percent claims":
            return round(accuracy * 100, rng.choice((0, 1, 2)))
        case "rounded claims":
            return round(accuracy, rng.choice((1, 2)))
        case _:
            return accuracy


def _similarity(rng: random.Random, agent: SimulatedAgent) -> float | None:
    if agent.kind == "short answers":
        return 1.0 if rng.random() < 0.9 else 0.2
    return rng.betavariate(6, 4) if rng.random() < 0.7 else None


def _facts(accuracy: float, latency_ms: float, words: int) -> list[MetricFact]:
    met, quick = accuracy >= ACCURACY_MIN, latency_ms <= LATENCY_MAX_MS
    return [
        MetricFact(
            metric="accuracy",
            criterion_id="accuracy",
            value=accuracy,
            kind=MetricType.ACCURACY,
            provenance=Provenance.COMPUTED,
            met=met,
            margin=(accuracy - ACCURACY_MIN) / ACCURACY_MIN if met else None,
            bonus_micros=BONUS_MICROS if accuracy >= BONUS_FROM else 0,
        ),
        MetricFact(
            metric="latency_ms",
            criterion_id="quick",
            value=latency_ms,
            kind=MetricType.LATENCY,
            provenance=Provenance.OBSERVED,
            met=quick,
            margin=(LATENCY_MAX_MS - latency_ms) / LATENCY_MAX_MS if quick else None,
        ),
        MetricFact(
            metric="word_count",
            criterion_id="length",
            value=float(words),
            kind=MetricType.COUNT,
            provenance=Provenance.COMPUTED,
            met=True,
        ),
    ]


def _times(rng: random.Random, agent: SimulatedAgent, latency_ms: float, day: int) -> dict[str, float]:
    """Durations and clocks; the observed time includes the network, which stalls now and then."""
    way_ms = rng.expovariate(1 / 15) + (rng.uniform(200, 2000) if rng.random() < 0.005 else 0)
    start = day * DAY_S + rng.uniform(0, DAY_S)
    jitter_s, skew_s = (0.2, 4.0) if agent.kind == "jittery clock" else (0.02, 0.5)
    # If the clock is set back in between, short work seems to end before it started.
    took_s = rng.uniform(-jitter_s, 0.05) if agent.kind == "jittery clock" else latency_ms / 1000
    return {
        "claimed_ms": latency_ms,
        "observed_ms": latency_ms + way_ms,
        "started_at": start,
        "ended_at": start + took_s,
        "received_at": start + took_s + way_ms / 1000 + rng.uniform(-skew_s, skew_s),
    }


def _usage(rng: random.Random, output: str) -> dict[str, Any]:
    """Tokens: tokenizers differ by a few, or by a percent of many."""
    written = max(1, round(len(output) / 4))
    counted = written + rng.randint(200, 4000)
    apart = rng.choice((0, 0, 0, rng.randint(-4, 4), round(counted * rng.uniform(-0.015, 0.015))))
    return {
        "output_tokens": float(written),
        "claimed_tokens": float(counted + apart),
        "provider_tokens": float(counted),
        "usage_reconciled": rng.random() < 0.7,
    }


# Cheats.

Cheat = Callable[[random.Random, SimulatedOutcome, SimulatedMarket], SimulatedOutcome]


def _with(deed: SimulatedOutcome, **changes: Any) -> SimulatedOutcome:
    return msgspec.structs.replace(deed, dossier=replace(deed.dossier, **changes))


def _with_accuracy(deed: SimulatedOutcome, accuracy: float) -> SimulatedOutcome:
    """The same outcome with another accuracy, measured and claimed."""
    latency_ms, words = deed.dossier.metrics[1].value or 0.0, len(deed.output.split())
    facts = _facts(accuracy, latency_ms, words)
    return _with(deed, metrics=facts, claims={"accuracy": accuracy}, success=all(fact.met for fact in facts))


def _with_output(deed: SimulatedOutcome, output: str) -> SimulatedOutcome:
    return msgspec.structs.replace(_with(deed, output_chars=len(output)), output=output)


def _is_cheat_attempt(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> bool:
    """Whether the agent cheats in this outcome."""
    agent, dossier = deed.agent, deed.dossier
    match agent.kind:
        case "retry_farming" | "probing" | "threshold_bunching" | "perfect_accuracy_streak":
            return True
        case "concentrated_pair":
            return dossier.consumer_id == agent.favourite
        case "duplicate_claim":
            return agent.id in market.last and rng.random() < 0.7
        case "anomaly":
            # The first outcomes are honest.
            return len(market.memories[agent.id].accuracies) >= 15 and rng.random() < 0.4
        case _:
            return rng.random() < 0.7


def _cheat_range_impossible(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    match rng.randrange(3):
        case 0:
            return _with(deed, claims={"accuracy": rng.uniform(101, 200)})
        case 1:
            return _with(deed, claimed_ms=-rng.uniform(1, 100))
        case _:
            return _with(deed, output_tokens=rng.uniform(2, 20) * 3 * (deed.dossier.claimed_ms or 0.0))


def _cheat_clock_order(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    if rng.random() < 0.5:
        return _with(deed, ended_at=(deed.dossier.started_at or 0.0) - rng.expovariate(0.5))
    return _with(deed, ended_at=(deed.dossier.received_at or 0.0) + rng.uniform(3, 600))


def _cheat_latency_mismatch(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, claimed_ms=rng.uniform(0.2, 0.95) * (deed.dossier.observed_ms or 0.0))


def _cheat_usage_mismatch(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, claimed_tokens=round((deed.dossier.provider_tokens or 0.0) * rng.uniform(1.01, 1.6)))


def _cheat_claimed_vs_measured(
    rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    measured = deed.dossier.metrics[0].value or 0.0
    return _with(_with_accuracy(deed, round(measured * rng.uniform(0.6, 0.98), 4)), claims={"accuracy": measured})


def _cheat_evaluator_tamper(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    if rng.random() < 0.3:
        return _with(deed, canary_intact=False)
    return _with(deed, evaluator_after={"tests": "0bad", "reference": "a0c3"})


def _cheat_canary_leak(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # Some agents change the copy.
    return _with(deed, leaked=["c0ffee"] if rng.random() < 0.8 else [])


def _cheat_reference_copy(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, reference_similarity=rng.uniform(0.95, 1.0))


def _cheat_replayed_output(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> SimulatedOutcome:
    earlier = market.last.get(deed.agent.id, deed).output
    return _with_output(deed, earlier if rng.random() < 0.8 else f"{earlier} {rng.choice(WORDS)}")


def _cheat_sybil_output(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # One operator behind several agents reuses a set of answers.
    drawer = random.Random(f"drawer {rng.randrange(100)}")  # noqa: S311 - as above
    return _with_output(deed, _output(drawer, deed.agent))


def _cheat_duplicate_claim(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> SimulatedOutcome:
    again = market.last[deed.agent.id]
    new_run = rng.random() < 0.1
    dossier = replace(again.dossier, contract_id=deed.dossier.contract_id)
    return msgspec.structs.replace(
        again, dossier=dossier, day=deed.day, evidence_id=deed.evidence_id if new_run else again.evidence_id
    )


def _cheat_impossible_task_pass(
    _rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    return _with(_with_accuracy(deed, 0.97), impossible=True, success=True)


def _cheat_null_agent_pass(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, null_passes=["empty text"])


def _cheat_claimed_only(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    claims = [replace(fact, provenance=Provenance.CLAIMED) for fact in _with_accuracy(deed, 0.96).dossier.metrics]
    return _with(deed, metrics=claims, claims={"accuracy": 0.96})


def _cheat_retry_farming(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # A few inputs, each tried more than ten times with at most one word changed.
    input_id = f"farmed-{deed.agent.id}-{rng.randrange(4)}"
    words = _output(random.Random(input_id), deed.agent).split()  # noqa: S311 - as above
    if rng.random() < 0.5:
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return msgspec.structs.replace(_with_output(deed, " ".join(words)), input_id=input_id)


def _cheat_probing(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # The same text with another word at its end, which is hardly ever the one that the criteria ask for.
    text = _output(random.Random(deed.agent.id), deed.agent)  # noqa: S311 - as above
    word = random.Random(deed.dossier.contract_id).choice(WORDS)  # noqa: S311 - as above
    return _with_output(_with_accuracy(deed, 0.5), f"{text} {word}")


def _cheat_threshold_bunching(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    aimed = rng.random() < 0.85
    return _with_accuracy(deed, round(ACCURACY_MIN * (1 + (rng.uniform(0, 0.01) if aimed else rng.uniform(0, 0.1))), 4))


def _cheat_concentrated_pair(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with_accuracy(deed, round(rng.uniform(0.955, 0.995), 4) if rng.random() < 0.98 else 0.92)


def _cheat_anomaly(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with_accuracy(deed, round(rng.uniform(0.6, 0.85), 4))


def _cheat_perfect_accuracy_streak(
    rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    return _with_accuracy(deed, 1.0 if rng.random() < 0.97 else 0.99)


CHEATS: dict[str, Cheat] = {
    "range_impossible": _cheat_range_impossible,
    "clock_order": _cheat_clock_order,
    "latency_mismatch": _cheat_latency_mismatch,
    "usage_mismatch": _cheat_usage_mismatch,
    "claimed_vs_measured": _cheat_claimed_vs_measured,
    "evaluator_tamper": _cheat_evaluator_tamper,
    "canary_leak": _cheat_canary_leak,
    "reference_copy": _cheat_reference_copy,
    "replayed_output": _cheat_replayed_output,
    "sybil_output": _cheat_sybil_output,
    "duplicate_claim": _cheat_duplicate_claim,
    "impossible_task_pass": _cheat_impossible_task_pass,
    "null_agent_pass": _cheat_null_agent_pass,
    "claimed_only": _cheat_claimed_only,
    "retry_farming": _cheat_retry_farming,
    "threshold_bunching": _cheat_threshold_bunching,
    "concentrated_pair": _cheat_concentrated_pair,
    "anomaly": _cheat_anomaly,
    "perfect_accuracy_streak": _cheat_perfect_accuracy_streak,
    PROBING: _cheat_probing,
}
"""How to cheat, by the rule that detects it."""
