"""What earlier outcomes say about a new one: a few rows read and written, whatever the number of outcomes."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import or_, select

from meruit.model.contract import Contract
from meruit.model.governance import Dealings, Dossier, History
from meruit.stores import tables
from meruit.stores.writing import Merged, Writing
from meruit.trust.memory import AgentMemory, Marks, baselines, is_near, recent, remembered

DAY_MICROS = 86_400 * 1_000_000
MAX_SKETCHES = 20
"""Of an agent's last outputs to one input."""


def recalled(writing: Writing, tenant: str, contract: Contract, dossier: Dossier, marks: Marks) -> Dossier:
    """The dossier with what is remembered of its agent, its output and its evidence."""
    memory = _memory(writing, tenant, contract.agent_id)
    margins, accuracies = recent(memory, dossier.metrics)
    names = {fact.metric for fact in dossier.metrics}
    return msgspec.structs.replace(
        dossier,
        history=History(
            replayed_in=_seen(writing, tenant, contract, marks, same_agent=True),
            shared_with=_seen(writing, tenant, contract, marks, same_agent=False),
            settled_under=_settled_under(writing, tenant, contract, marks),
            latency_mismatches=memory.mismatches,
            near_duplicates=sum(is_near(marks.sketch, one) for one in _sketches(writing, tenant, contract, marks)),
            margins=margins,
            accuracies=accuracies,
            baselines=baselines(memory, names, writing.now.micros // DAY_MICROS),
            dealings=_dealings(writing, tenant, contract),
        ),
    )


def remember(
    writing: Writing, tenant: str, contract: Contract, dossier: Dossier, marks: Marks, *, mismatch: bool, bonus: bool
) -> None:
    """Keep what later outcomes are compared with."""
    agent, consumer = contract.agent_id, contract.consumer_id
    memory = remembered(
        *(_memory(writing, tenant, agent), dossier.metrics, writing.now.micros // DAY_MICROS), mismatch=mismatch
    )
    writing.learn(("memory", tenant, agent), memory)
    writing.merge(tables.agent_memories, Merged.REPLACED, tenant, agent, memory.to_json())
    for one, other in ((agent, consumer), (agent, ""), ("", consumer), ("", "")):
        writing.merge(tables.dealings, Merged.ADDED, tenant, one, other, 1, int(bonus))
    if marks.output is not None:
        writing.merge(tables.sightings, Merged.KEPT, tenant, marks.output, agent, marks.input, contract.id)
        known = writing.known(("sighting", tenant, marks.output)) or ()
        writing.learn(("sighting", tenant, marks.output), (*known, (agent, marks.input, contract.id)))
    sketches = [*_sketches(writing, tenant, contract, marks), marks.sketch][-MAX_SKETCHES:]
    writing.learn(("sketches", tenant, agent, marks.input), sketches)
    writing.merge(tables.attempts, Merged.REPLACED, tenant, agent, marks.input, " ".join(sketches))


def remember_settled(writing: Writing, tenant: str, contract: Contract, evidence: str) -> None:
    """Nobody else is paid for the same run."""
    writing.merge(tables.settled_evidence, Merged.KEPT, tenant, evidence, contract.id)
    if writing.known(("evidence", tenant, evidence)) is None:
        writing.learn(("evidence", tenant, evidence), contract.id)


def _memory(writing: Writing, tenant: str, agent_id: str) -> AgentMemory:
    known: AgentMemory | None = writing.known(("memory", tenant, agent_id))
    if known is not None:
        return known
    table = tables.agent_memories
    rows = writing.read(select(table.c.body).where(table.c.tenant == tenant, table.c.agent_id == agent_id))
    return AgentMemory.from_json(rows[0].body) if rows else AgentMemory()


def _seen(writing: Writing, tenant: str, contract: Contract, marks: Marks, *, same_agent: bool) -> str | None:
    """The contract in which this agent, or the other agent that, gave the same output to another input."""
    if marks.output is None:
        return None
    agent_id = contract.agent_id
    for agent, given, where in writing.known(("sighting", tenant, marks.output)) or ():
        if (agent == agent_id) is same_agent and given != marks.input:
            return str(where if same_agent else agent)
    table = tables.sightings
    query = select(table.c.agent_id, table.c.contract_id).where(
        table.c.tenant == tenant,
        table.c.output_mark == marks.output,
        table.c.input_mark != marks.input,
        (table.c.agent_id == agent_id) if same_agent else (table.c.agent_id != agent_id),
    )
    rows = writing.read(query.limit(1))
    if not rows:
        return None
    return str(rows[0].contract_id if same_agent else rows[0].agent_id)


def _settled_under(writing: Writing, tenant: str, contract: Contract, marks: Marks) -> str | None:
    if marks.evidence is None:
        return None
    found: str | None = writing.known(("evidence", tenant, marks.evidence))
    if found is None:
        table = tables.settled_evidence
        rows = writing.read(
            select(table.c.contract_id).where(table.c.tenant == tenant, table.c.evidence == marks.evidence)
        )
        found = rows[0].contract_id if rows else None
    return None if found == contract.id else found


def _sketches(writing: Writing, tenant: str, contract: Contract, marks: Marks) -> Sequence[str]:
    known: Sequence[str] | None = writing.known(("sketches", tenant, contract.agent_id, marks.input))
    if known is not None:
        return known
    table = tables.attempts
    rows = writing.read(
        select(table.c.sketches).where(
            table.c.tenant == tenant, table.c.agent_id == contract.agent_id, table.c.input_mark == marks.input
        )
    )
    return str(rows[0].sketches).split() if rows else ()


def _dealings(writing: Writing, tenant: str, contract: Contract) -> Dealings:
    """How often the two dealt before; those of the same group are not among them yet, which changes no statistic."""
    agent, consumer = contract.agent_id, contract.consumer_id
    table = tables.dealings
    pairs = ((agent, consumer), (agent, ""), ("", consumer), ("", ""))
    # Written out, because SQLite compares no tuples with a list through an index.
    either = or_(*((table.c.agent_id == one) & (table.c.consumer_id == other) for one, other in pairs))
    rows = writing.read(select(table).where(table.c.tenant == tenant, either))
    found = {(row.agent_id, row.consumer_id): (row.outcomes, row.with_bonus) for row in rows}
    return Dealings(*(count for pair in pairs for count in found.get(pair, (0, 0))))
