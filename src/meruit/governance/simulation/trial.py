"""Run the simulated market, and count what the rules find."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from meruit.governance.attack_trial import AttackTrial
from meruit.governance.attacks import TRIES, try_attacks
from meruit.governance.evaluate import govern
from meruit.governance.simulation.agents import HONEST, SimulatedAgent, SimulatedOutcome, draw_agents
from meruit.governance.simulation.cheats import CHEATS, is_cheat_attempt
from meruit.governance.simulation.honest import honest_outcome
from meruit.governance.simulation.market import SimulatedMarket
from meruit.model.governance import Action, Disposition, Flag, GovernanceResult, Policy
from meruit.model.record import Record
from meruit.registry import flags

TEN_THOUSAND = 10_000
OUTCOMES_PER_TRY = 200
"""A small trial also tries each attack less often."""
DAYS = 45
"""The duration of the simulation; longer than the window of a baseline."""
FIRST_DAY = 20_000


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


def trial(
    seed: int,
    outcomes: int,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    *,
    progress: Callable[[int, int], None] | None = None,
) -> TrialReport:
    """Simulate `outcomes` outcomes of honest and cheating agents, and count what the rules find."""
    rng = random.Random(seed)  # noqa: S311 - the same market for the same seed, nothing secret
    agents = [*draw_agents(rng, outcomes, CHEATS)]
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


def _simulate_outcome(
    rng: random.Random, agent: SimulatedAgent, market: SimulatedMarket, number: int, day: int
) -> SimulatedOutcome:
    deed = honest_outcome(rng, agent, number, day)
    if agent.kind not in CHEATS or not is_cheat_attempt(rng, deed, market):
        return deed
    return msgspec.structs.replace(CHEATS[agent.kind](rng, deed, market), cheats=True)


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
