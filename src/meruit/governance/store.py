"""The history that outcomes are compared with; reads and writes a few rows per outcome."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from meruit.governance.history import (
    AgentHistory,
    NearTries,
    SubmissionFingerprints,
    TryMark,
    add_try,
    baselines,
    find_near_tries,
    is_first_output,
    is_near,
    recent,
    update_history,
)
from meruit.governance.paid_runs import find_paid_contract
from meruit.governance.resemblance import match_likeness, output_keys
from meruit.model.governance import Dealings, Dossier, GovernanceResult, History
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import MergeRule, WriteTransaction

if TYPE_CHECKING:
    from meruit.model.contract import Contract

MAX_SIGHTINGS = 32
"""How many earlier outputs are compared."""
DAY_MICROS = 86_400 * 1_000_000
MAX_SKETCHES = 20
"""How many of an agent's last outputs to one input, and of its last tries at one set of criteria, are compared."""


class HistoryKind(StrEnum):
    """Which outcomes of an agent are remembered together."""

    CONTRACT = "contract"
    VERIFICATION = "verification"


class _Sighting(NamedTuple):
    """A long output, and where it was given first."""

    agent_id: str
    input_hash: str
    contract_id: str
    signature: str


class _EarlierOutput(msgspec.Struct, frozen=True):
    """An earlier output that is the same as another, or nearly."""

    agent_id: str
    contract_id: str
    likeness: float


_HISTORIES = Rows[AgentHistory]("agent_history")
_SIGHTINGS = Rows[tuple[_Sighting, ...]]("first_output")
_OUTPUT_SKETCHES = Rows[Sequence[str]]("output_sketches")
_TRIES = Rows[Sequence[TryMark]]("try_sketches")


def add_history(
    writing: WriteTransaction,
    tenant: str,
    contract: "Contract",
    dossier: Dossier,
    marks: SubmissionFingerprints,
    criteria_digest: str | None = None,
) -> Dossier:
    """The dossier with the history of its agent, its output and its run."""
    memory = _load_history(writing, tenant, contract.agent_id, HistoryKind.CONTRACT)
    margins, accuracies = recent(memory, dossier.metrics)
    replayed, shared = _earlier_outputs(writing, tenant, contract.agent_id, marks)
    names = {fact.metric for fact in dossier.metrics}
    tries = _find_near_tries(writing, tenant, contract.agent_id, criteria_digest, marks)
    return msgspec.structs.replace(
        dossier,
        history=History(
            **_resemblance(replayed, shared),
            settled_under=find_paid_contract(writing, tenant, contract, marks.evidence),
            latency_mismatches=memory.mismatches,
            near_duplicates=sum(
                is_near(marks.sketch, one) for one in _sketches(writing, tenant, contract.agent_id, marks.input)
            ),
            near_tries=tries.near,
            near_tries_failed=tries.failed,
            margins=margins,
            accuracies=accuracies,
            baselines=baselines(memory, names, writing.now.micros // DAY_MICROS),
            dealings=_dealings(writing, tenant, contract),
        ),
    )


def record_history(
    writing: WriteTransaction,
    tenant: str,
    contract: "Contract",
    dossier: Dossier,
    marks: SubmissionFingerprints,
    *,
    mismatch: bool,
    result: GovernanceResult | None = None,
) -> None:
    """Record what later outcomes are compared with; `result` decides whether the output counts as the agent's own."""
    agent, consumer = contract.agent_id, contract.consumer_id
    _update_history(writing, tenant, agent, HistoryKind.CONTRACT, dossier, mismatch=mismatch)
    for one, other in ((agent, consumer), (agent, ""), ("", consumer), ("", "")):
        writing.merge(
            tables.dealings,
            MergeRule.ADDED,
            tenant=tenant,
            agent_id=one,
            consumer_id=other,
            outcomes=1,
            with_bonus=int(dossier.earned_bonus),
        )
    if is_first_output(result):
        _record_output(writing, tenant, agent, marks, contract.id)
    record_attempt(writing, tenant, OutputAttempt(agent_id=agent, input=marks.input, sketch=marks.sketch))


class VerifiedWork(msgspec.Struct, frozen=True):
    """Work that is recorded without a contract, to be compared with what its agent gave before."""

    outcome_id: str
    agent_id: str
    dossier: Dossier
    marks: SubmissionFingerprints
    by_agent: bool = False
    """Whether the agent handed it in itself: it then counts as an attempt, and shapes no history."""
    invalid: bool = False
    """Whether governance rejects it; it then shapes no history either."""
    criteria_digest: str | None = None
    """Of the criteria that judged it."""


def compare_verified(writing: WriteTransaction, tenant: str, work: VerifiedWork) -> Dossier:
    """The dossier with the history of verified work; its own is recorded for what comes after.

    Contracts have a history of their own: what is verified on the side can neither hold a payment nor clear one.
    """
    agent, marks, facts = work.agent_id, work.marks, work.dossier.metrics
    memory = _load_history(writing, tenant, agent, HistoryKind.VERIFICATION)
    margins, accuracies = recent(memory, facts)
    replayed, shared = _earlier_outputs(writing, tenant, agent, marks)
    near, tries = 0, NearTries()
    if work.by_agent:
        tries = _find_near_tries(writing, tenant, agent, work.criteria_digest, marks)
        _record_try(writing, tenant, work)
        near = sum(is_near(marks.sketch, one) for one in _sketches(writing, tenant, agent, marks.input))
        record_attempt(writing, tenant, OutputAttempt(agent_id=agent, input=marks.input, sketch=marks.sketch))
    elif not work.invalid:
        _update_history(writing, tenant, agent, HistoryKind.VERIFICATION, work.dossier, mismatch=False)
        if all(one is None or one.likeness < 1 for one in (replayed, shared)):
            _record_output(writing, tenant, agent, marks, work.outcome_id)
    history = History(
        **_resemblance(replayed, shared),
        near_duplicates=near,
        near_tries=tries.near,
        near_tries_failed=tries.failed,
        margins=margins,
        accuracies=accuracies,
        baselines=baselines(memory, {fact.metric for fact in facts}, writing.now.micros // DAY_MICROS),
    )
    return msgspec.structs.replace(work.dossier, history=history)


class OutputAttempt(NamedTuple):
    """The fingerprints of an agent's output to one input, whether it is paid or not."""

    agent_id: str
    input: str
    sketch: str


def record_attempt(writing: WriteTransaction, tenant: str, attempt: OutputAttempt) -> None:
    """Record the sketch of an output, so that many nearly equal ones are noticed."""
    agent_id, given, sketch = attempt
    sketches = [*_sketches(writing, tenant, agent_id, given), sketch][-MAX_SKETCHES:]
    _OUTPUT_SKETCHES.put(writing, sketches, tenant, agent_id, given)
    writing.merge(
        tables.output_sketches,
        MergeRule.REPLACED,
        tenant=tenant,
        agent_id=agent_id,
        input_hash=given,
        sketches=" ".join(sketches),
    )


def _find_near_tries(
    writing: WriteTransaction, tenant: str, agent_id: str, criteria_digest: str | None, marks: SubmissionFingerprints
) -> NearTries:
    if criteria_digest is None or not marks.words:
        return NearTries()
    return find_near_tries(_tries(writing, tenant, agent_id, criteria_digest), marks.words)


def _record_try(writing: WriteTransaction, tenant: str, work: VerifiedWork) -> None:
    """Record the words of a try, so that many nearly equal ones at the same criteria are noticed."""
    digest = work.criteria_digest
    if digest is None or not work.marks.words:
        return
    known = _tries(writing, tenant, work.agent_id, digest)
    tries = add_try(known, work.marks.words, passed=work.dossier.success)[-MAX_SKETCHES:]
    _TRIES.put(writing, tries, tenant, work.agent_id, digest)
    writing.merge(
        tables.try_sketches,
        MergeRule.REPLACED,
        tenant=tenant,
        agent_id=work.agent_id,
        criteria_digest=digest,
        sketches=" ".join(map(str, tries)),
    )


def _tries(writing: WriteTransaction, tenant: str, agent_id: str, criteria_digest: str) -> Sequence[TryMark]:
    known = _TRIES.get(writing, tenant, agent_id, criteria_digest)
    if known is None:
        rows = writing.fetch(_TRIED, tenant, agent_id, criteria_digest)
        known = [*map(TryMark.parse, str(rows[0][0]).split())] if rows else ()
        _TRIES.put(writing, known, tenant, agent_id, criteria_digest)
    return known


def _load_history(writing: WriteTransaction, tenant: str, agent_id: str, kind: HistoryKind) -> AgentHistory:
    known = _HISTORIES.get(writing, tenant, agent_id, kind)
    if known is None:
        rows = writing.fetch(_MEMORY, tenant, agent_id, str(kind))
        known = AgentHistory.from_json(rows[0][0]) if rows else AgentHistory()
        _HISTORIES.put(writing, known, tenant, agent_id, kind)
    return known


def _update_history(
    writing: WriteTransaction, tenant: str, agent_id: str, kind: HistoryKind, dossier: Dossier, *, mismatch: bool
) -> None:
    before = _load_history(writing, tenant, agent_id, kind)
    memory = update_history(before, dossier.metrics, writing.now.micros // DAY_MICROS, mismatch=mismatch)
    _HISTORIES.put(writing, memory, tenant, agent_id, kind)
    writing.merge(
        tables.agent_histories,
        MergeRule.REPLACED,
        tenant=tenant,
        agent_id=agent_id,
        kind=str(kind),
        body=memory.to_json(),
    )


def _record_output(
    writing: WriteTransaction, tenant: str, agent_id: str, marks: SubmissionFingerprints, given_in: str
) -> None:
    """Record where an output was first given; nothing for one that is too short to be recognised."""
    for key in output_keys(marks):
        writing.merge(
            tables.first_outputs,
            MergeRule.KEPT,
            tenant=tenant,
            output_hash=key,
            agent_id=agent_id,
            input_hash=_task(marks),
            contract_id=given_in,
            signature=marks.signature,
        )
        known = _SIGHTINGS.get(writing, tenant, key) or ()
        sighting = _Sighting(
            agent_id=agent_id, input_hash=_task(marks), contract_id=given_in, signature=marks.signature
        )
        _SIGHTINGS.put(writing, (*known, sighting), tenant, key)


def _earlier_outputs(
    writing: WriteTransaction, tenant: str, agent_id: str, marks: SubmissionFingerprints
) -> tuple[_EarlierOutput | None, _EarlierOutput | None]:
    """Where the output occurred for another task: given by this agent, and by another one; the most alike of each."""
    keys = output_keys(marks)
    if not keys:
        return None, None
    task = _task(marks)
    rows = [
        (key, *sighting)
        for key in keys
        for sighting in _SIGHTINGS.get(writing, tenant, key) or ()
        if sighting.input_hash != task
    ]
    several = ", ".join("?" * len(keys))
    for question in (_REPLAYED, _SHARED):
        rows += writing.fetch(question.format(keys=several), tenant, *keys, agent_id, task)
    mine: list[_EarlierOutput] = []
    others: list[_EarlierOutput] = []
    for key, agent, _, where, signature in rows:
        alike = match_likeness(keys[key], marks.signature, signature)
        if alike is not None:
            (mine if agent == agent_id else others).append(
                _EarlierOutput(agent_id=agent, contract_id=where, likeness=alike)
            )
    return _most_alike(mine), _most_alike(others)


def _most_alike(found: Sequence[_EarlierOutput]) -> _EarlierOutput | None:
    return max(found, key=lambda one: one.likeness, default=None)


def _resemblance(replayed: _EarlierOutput | None, shared: _EarlierOutput | None) -> dict[str, Any]:
    """The fields of a history that say where the output was given before."""
    return {
        "replayed_in": None if replayed is None else replayed.contract_id,
        "replayed_likeness": 1.0 if replayed is None else replayed.likeness,
        "shared_with": None if shared is None else shared.agent_id,
        "shared_likeness": 1.0 if shared is None else shared.likeness,
    }


def _task(marks: SubmissionFingerprints) -> str:
    """The fingerprint of the task; stored in the column `input_hash` of first_outputs."""
    return marks.task or marks.input


def _sketches(writing: WriteTransaction, tenant: str, agent_id: str, given: str) -> Sequence[str]:
    known = _OUTPUT_SKETCHES.get(writing, tenant, agent_id, given)
    if known is None:
        rows = writing.fetch(_SKETCHES, tenant, agent_id, given)
        known = str(rows[0][0]).split() if rows else ()
        _OUTPUT_SKETCHES.put(writing, known, tenant, agent_id, given)
    return known


def _dealings(writing: WriteTransaction, tenant: str, contract: "Contract") -> Dealings:
    """The earlier dealings of agent and consumer, without those of the same group."""
    agent, consumer = contract.agent_id, contract.consumer_id
    rows = writing.fetch(_DEALINGS, tenant, agent, consumer, tenant, agent, tenant, consumer, tenant)
    found = {(row[0], row[1]): row[2:] for row in rows}
    pairs = ((agent, consumer), (agent, ""), ("", consumer), ("", ""))
    return Dealings(*(count for pair in pairs for count in found.get(pair, (0, 0))))


_MEMORY = "SELECT body FROM agent_histories WHERE tenant = ? AND agent_id = ? AND kind = ?"
_SIGHTED = (
    "SELECT output_hash, agent_id, input_hash, contract_id, signature FROM first_outputs "
    "WHERE tenant = ? AND output_hash IN ({keys}) AND agent_id"
)
_REPLAYED = f"{_SIGHTED} = ? AND input_hash <> ? LIMIT {MAX_SIGHTINGS}"
_SHARED = f"{_SIGHTED} <> ? AND input_hash <> ? LIMIT {MAX_SIGHTINGS}"
_SKETCHES = "SELECT sketches FROM output_sketches WHERE tenant = ? AND agent_id = ? AND input_hash = ?"
_TRIED = "SELECT sketches FROM try_sketches WHERE tenant = ? AND agent_id = ? AND criteria_digest = ?"
_DEALT = "SELECT agent_id, consumer_id, outcomes, with_bonus FROM dealings WHERE tenant = ? AND agent_id ="
# Four lookups by the whole key; a condition with OR would read every row.
_DEALINGS = " UNION ALL ".join(
    f"{_DEALT} {agent} AND consumer_id = {consumer}"
    for agent, consumer in (("?", "?"), ("?", "''"), ("''", "?"), ("''", "''"))
)
