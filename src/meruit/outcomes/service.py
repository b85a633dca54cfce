"""Verifying for the record: criteria compiled once, work judged, and the outcome handed to the store."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from meruit.documents.authoring import parse_criteria
from meruit.errors import (
    CriteriaError,
    MeruitError,
    Problem,
    RecordTampered,
    Unavailable,
    UnsupportedCriteria,
    VerificationRefusal,
)
from meruit.governance.dossier import fingerprints_without_contract, public_input_fingerprint, text_of
from meruit.governance.history import sketch
from meruit.governance.records import OutputAttempt, VerifiedWork
from meruit.governance.rule_governance import RuleGovernance, verification_dossier
from meruit.judges.scope import JudgingScope, judging_for
from meruit.log.commitment import SALT_BYTES
from meruit.log.entries import criteria_digest_of
from meruit.metrics.support.extractor import LazyServices, MetricService
from meruit.model.access import DEFAULT_TENANT
from meruit.model.canonical import Written, payload_bytes, payload_digest, write_and_digest_all
from meruit.model.criterion import SuccessCriteria
from meruit.model.outcome import Labels
from meruit.model.verdict import GovernanceStatus, Verdict, VerificationResult
from meruit.model.vote import JUDGE
from meruit.model.work import Work, written_output
from meruit.outcomes.store.together import RecordTogether
from meruit.outcomes.store.write import (
    SALTS,
    HistoryCheck,
    NewOutcome,
    RecordAll,
    RecordedVersion,
)
from meruit.registry import faults_of
from meruit.store.blobs import EvidencePart
from meruit.store.lru import LruCache
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine
from meruit.verify.faults import examine_with, refuse_faults
from meruit.verify.lint.custom_code import CustomCodeProblem, try_out
from meruit.verify.measure import Digests

if TYPE_CHECKING:
    from meruit.outcomes.store.criteria import NamedCriteria

MAX_COMPILED, MAX_COMPILED_BYTES = 256, 16 * 1024 * 1024
"""Sets of criteria that are kept compiled, and how large all of them together may be as they are written."""
SMALL_WORK = 16 * 1024
"""Bytes of the work times questions about it, up to which it is judged where it arrives; others wait meanwhile."""
SMALL_BYTES = 16 * 1024
"""Work up to this size is prepared for the record where it arrives."""

TRY_BUDGET_S = 15.0
"""How long the code of criteria that are registered or published is tried, all of it together."""


class Submission(msgspec.Struct, frozen=True):
    """Work to be judged."""

    input: Mapping[str, Any]
    output: Mapping[str, Any]
    metadata: Mapping[str, Any]
    labels: Labels = Labels()
    size: int = 0
    """Of all of it, in bytes, where that is known."""


class JudgedWork(msgspec.Struct, frozen=True):
    """Work with its verdict, not yet recorded."""

    outcome_id: str
    submission: Submission
    criteria: CompiledCriteria
    result: VerificationResult
    result_json: bytes
    written: Written | None = None
    """Input, output and metadata as they were digested, where they are at hand."""

    def as_recorded(self, recorded: RecordedVersion) -> "JudgedWork":
        """The work with the result that was recorded, to which the agent's history may have added flags."""
        result = recorded.result
        return self if result is None else msgspec.structs.replace(self, result=result, result_json=result.to_json())


class Registrar:
    """Judges work and keeps what was decided."""

    def __init__(self, engine: VerificationEngine, store: Store, *, max_criteria: int | None = None) -> None:
        self.engine = engine
        self.store = store
        if isinstance(engine.services, LazyServices):
            engine.services.when_built(JUDGE, self._keep_votes)
        elif JUDGE in engine.services:
            self._keep_votes(engine.services[JUDGE])
        self._max_criteria = max_criteria
        self._compiled = LruCache[str, CompiledCriteria](
            MAX_COMPILED, max_weight=MAX_COMPILED_BYTES, weigh=lambda one: len(one.body)
        )

    def _keep_votes(self, judges: MetricService) -> None:
        """Have the votes of model judges stored."""
        # Few criteria ask a judge, and a command that records one outcome should be quick.
        from meruit.judges.records import StoredVotes
        from meruit.judges.service import ModelJudges

        if isinstance(judges, ModelJudges):
            judges.keep_votes(StoredVotes(self.store))

    def without_governance(self) -> Self:
        """The same registrar, whose engine does not ask governance."""
        registrar = copy.copy(self)
        registrar.engine = self.engine.without_governance()
        return registrar

    def compile(self, written: Mapping[str, Any] | SuccessCriteria) -> CompiledCriteria:
        """Compile criteria as an author wrote them; raises CriteriaError with every problem."""
        if isinstance(written, SuccessCriteria):
            refuse_faults(self.engine.catalogue, written)
            return self._compile(written, None)
        found = self.find_compiled(written)
        if found is not None:
            return found
        criteria = parse_criteria(
            written,
            known_metrics=self.engine.catalogue.names(),
            max_criteria=self._max_criteria,
            examine=examine_with(self.engine.catalogue),
        )
        return self._compile(criteria, payload_digest(written))

    def find_compiled(self, written: Mapping[str, Any]) -> CompiledCriteria | None:
        """Criteria that were compiled before; None where that is still to be done, which may take long."""
        key = payload_digest(written)
        return None if key is None else self._compiled.get(key)

    def load_named(
        self, tenant: str, name: str, version: int | None = None
    ) -> "tuple[NamedCriteria, CompiledCriteria]":
        """Registered criteria, compiled; raises NotFound, and Unavailable for what ran where they were registered."""
        # Imported here, as below: recording by the criteria of a file needs neither SQLAlchemy's queries nor threads.
        from meruit.outcomes.store import criteria as named
        from meruit.outcomes.store import read as outcomes

        with self.store.database.reading() as connection:
            found = named.find(connection, tenant, name, version)
            known = self._compiled.get(found.digest)
            if known is not None:
                return found, known
            body = outcomes.criteria_body(connection, tenant, found.digest)
        return found, self.load_committed(found.digest, body)

    def load_committed(self, digest: str, body: bytes) -> CompiledCriteria:
        """Criteria that were committed to, compiled; raises Unavailable for what ran where they were registered.

        Raises RecordTampered for others than those that the digest names.
        """
        known = self._compiled.get(digest)
        if known is not None:
            return known
        from meruit.outcomes.store import read as outcomes

        if criteria_digest_of(body) != digest:
            raise RecordTampered(f"the criteria {digest} were changed")
        try:
            return self._compile(outcomes.criteria_from(body), digest)
        except CriteriaError as refused:
            raise Unavailable("criteria", refused.problems) from None
        except VerificationRefusal as refused:
            raise Unavailable("criteria", [Problem("criteria", str(refused))]) from None

    def _compile(self, criteria: SuccessCriteria, key: str | None) -> CompiledCriteria:
        made = self.engine.compile_or_raise(criteria)
        if key is not None:
            self._compiled.put(key, made)
        return made

    def validate(self, compiled: CompiledCriteria) -> None:
        """Raise Unsupported where an assertion is unknown, or the criteria's own code does not run."""
        problems = [
            Problem(f"criteria[{place}].{'.'.join(map(str, where))}", why)
            for place, criterion in enumerate(compiled.plan.criteria.criteria)
            if criterion.assertion is not None
            for where, why in faults_of(criterion.assertion)
        ]
        troubles: list[CustomCodeProblem] = try_out(compiled, Work(), good=False, budget_s=TRY_BUDGET_S)
        problems += [Problem(trouble.owner, trouble.message) for trouble in troubles]
        if problems:
            raise UnsupportedCriteria("criteria", problems)

    async def judge(
        self, compiled: CompiledCriteria, submission: Submission, tenant: str = DEFAULT_TENANT
    ) -> JudgedWork:
        """Judge the work; problems with the work are part of the verdict. Votes of judges are kept for the tenant."""
        outcome_id, contract_id = self._name(submission)
        given = (submission.input, submission.output, compiled, submission.metadata)
        with judging_for(JudgingScope(tenant)):
            if submission.size * max(1, len(compiled.slots)) > SMALL_WORK:
                result = await self.engine.verify_beside_loop(contract_id, *given)
            else:
                judged = self._judge_at_once(compiled, submission, outcome_id, contract_id)
                if judged is not None:
                    return judged
                result = await self.engine.verify(contract_id, *given)
        return JudgedWork(outcome_id, submission, compiled, result, result.to_json())

    def judge_sync(
        self, compiled: CompiledCriteria, submission: Submission, tenant: str = DEFAULT_TENANT
    ) -> JudgedWork:
        """The same for callers without an event loop."""
        outcome_id, contract_id = self._name(submission)
        judged = self._judge_at_once(compiled, submission, outcome_id, contract_id)
        if judged is not None:
            return judged
        with judging_for(JudgingScope(tenant)):
            result = self.engine.verify_sync(
                contract_id, submission.input, submission.output, compiled, submission.metadata
            )
        return JudgedWork(outcome_id, submission, compiled, result, result.to_json())

    def _name(self, submission: Submission) -> tuple[str, str]:
        """A new outcome id, and the contract that the work belongs to."""
        outcome_id = self.store.surroundings.new_id("out")
        return outcome_id, submission.labels.contract_id or outcome_id

    def _judge_at_once(
        self, compiled: CompiledCriteria, submission: Submission, outcome_id: str, contract_id: str
    ) -> JudgedWork | None:
        """Judge work that waits for nothing, and keep what was digested; None for other work."""
        if not self.engine.is_immediate(compiled):
            return None
        given, made, facts = submission.input, submission.output, submission.metadata
        if not type(given) is type(made) is type(facts) is dict:
            return None
        written, digests = write_and_digest_all(given, made, facts)
        if None in written:
            return None
        work = Work(made, given, facts, {written_output: written[1]})
        result = self.engine.verify_digested(contract_id, compiled, work, Digests(*digests))
        return JudgedWork(outcome_id, submission, compiled, result, result.to_json(), written)

    def draft(self, tenant: str, judged: JudgedWork, *, by_agent: bool = False) -> NewOutcome:
        """The outcome as the recorder takes it; large evidence is on disk when this returns."""
        work = judged.submission
        return _draft(
            self.store,
            tenant,
            judged.outcome_id,
            judged.written or _write(work.input, work.output, work.metadata),
            judged.result,
            judged.criteria.body,
            work.labels,
            judged.result_json,
            by_agent=by_agent,
        )

    async def draft_all(
        self,
        tenant: str,
        judged: Sequence[JudgedWork],
        *,
        by_agent: bool = False,
        idempotency_key: str | None = None,
        in_segment: bool = False,
    ) -> RecordAll:
        """The write that records several outcomes. Work that agents submit themselves counts as an attempt.

        In a segment, they share one entry of the log and one event; all must be judged by the same criteria.
        """

        def prepare_drafts() -> tuple[tuple[NewOutcome, ...], tuple[OutputAttempt, ...]]:
            drafts = tuple(self._draft_compared(tenant, one, by_agent=by_agent) for one in judged)
            ungoverned = by_agent and not isinstance(self.engine.governance, RuleGovernance)
            return drafts, tuple(map(_attempt, judged)) if ungoverned else ()

        if any(one.submission.size > SMALL_BYTES for one in judged):
            import asyncio

            drafts, attempts = await asyncio.to_thread(prepare_drafts)
        else:
            drafts, attempts = prepare_drafts()
        write = RecordTogether if in_segment else RecordAll
        return write(tenant=tenant, outcomes=drafts, attempts=attempts, idempotency_key=idempotency_key)

    def record_sync(self, tenant: str, judged: JudgedWork) -> RecordedVersion:
        """Record one outcome, without an event loop; returns when it is durable."""
        return self.store.recorder.write(RecordAll(tenant, (self._draft_compared(tenant, judged),)))[0]

    def _draft_compared(self, tenant: str, judged: JudgedWork, *, by_agent: bool = False) -> NewOutcome:
        """The outcome, to be compared with earlier work of its agent when it is written."""
        draft = self.draft(tenant, judged, by_agent=by_agent)
        governance, agent_id = self.engine.governance, judged.submission.labels.agent_id
        if not isinstance(governance, RuleGovernance) or agent_id is None or judged.result.verdict is Verdict.ERROR:
            return draft
        given = judged.submission
        work = Work(output=given.output, input=given.input, metadata=given.metadata)
        verified = VerifiedWork(
            outcome_id=judged.outcome_id,
            agent_id=agent_id,
            dossier=verification_dossier(work, judged.result, agent_id),
            marks=fingerprints_without_contract(work, by_agent=by_agent),
            by_agent=by_agent,
            invalid=judged.result.governance is GovernanceStatus.INVALID,
            criteria_digest=judged.result.criteria_digest,
        )
        return msgspec.structs.replace(draft, history_check=HistoryCheck(governance, verified))


def draft_outcome(
    store: Store,
    tenant: str,
    outcome_id: str,
    work: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]],
    result: VerificationResult,
    criteria: bytes,
) -> NewOutcome:
    """A verdict on work, given as input, output and metadata, by criteria in canonical form: to be recorded."""
    return _draft(store, tenant, outcome_id, _write(*work), result, criteria, Labels(), None)


def _write(given: Any, made: Any, facts: Any) -> Written:
    return payload_bytes(given), payload_bytes(made), payload_bytes(facts)


def _draft(  # noqa: PLR0913 - the parts of an outcome
    store: Store,
    tenant: str,
    outcome_id: str,
    written: Written,
    result: VerificationResult,
    criteria: bytes,
    labels: Labels,
    result_json: bytes | None,
    *,
    by_agent: bool = False,
) -> NewOutcome:
    return NewOutcome(
        tenant=tenant,
        id=outcome_id,
        labels=labels,
        input=_part(store, tenant, written[0], result.input_digest),
        output=_part(store, tenant, written[1], result.output_digest),
        metadata=_part(store, tenant, written[2], result.metadata_digest),
        criteria=criteria,
        result=result,
        salts=store.surroundings.entropy(SALTS * SALT_BYTES),
        result_json=result_json,
        by_agent=by_agent,
    )


def _part(store: Store, tenant: str, content: bytes | None, address: str | None) -> EvidencePart:
    if content is None or address is None:
        raise MeruitError("only work that is plain JSON can be recorded")
    return store.blobs.part(tenant, content, address)


def _attempt(judged: JudgedWork) -> OutputAttempt:
    work = judged.submission
    return OutputAttempt(work.labels.agent_id or "", public_input_fingerprint(work.input), sketch(text_of(work.output)))
