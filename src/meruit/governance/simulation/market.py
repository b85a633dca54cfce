"""What the simulated market remembers between outcomes, as the store does for a real one."""

from collections import Counter, defaultdict

from msgspec.structs import replace

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
from meruit.governance.simulation.agents import SimulatedOutcome
from meruit.model.governance import Dealings, Disposition, Dossier, GovernanceResult, History

MAX_SKETCHES = 20
"""How many attempts at one input are compared."""


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
