"""Verifying for the record: criteria made ready once, work judged, and the outcome handed to the store."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meruit.documents.authoring import parse_criteria
from meruit.errors import CriteriaError, MeruitError, Problem, Unavailable
from meruit.governance.dossier import public_mark, text_of
from meruit.governance.history import sketch
from meruit.governance.store import Attempt
from meruit.log.commitment import SALT_BYTES
from meruit.model.canonical import canonical, payload_bytes, payload_digest
from meruit.model.criterion import SuccessCriteria
from meruit.model.outcome import Labels
from meruit.model.verdict import VerificationResult
from meruit.model.work import Work
from meruit.outcomes.store import criteria as named
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.criteria import NamedCriteria
from meruit.outcomes.store.write import SALTS, Idempotent, NewOutcome, RecordAll, Recorded, Replay
from meruit.registry import faults_of
from meruit.store.blobs import Part
from meruit.store.store import Store
from meruit.verify.catalogue import Prepared
from meruit.verify.engine import Refusal, VerificationEngine
from meruit.verify.lint.custom_code import Trouble, try_out

MAX_READY, MAX_READY_BYTES = 256, 16 * 1024 * 1024
"""Sets of criteria that are kept compiled, and how large all of them together may be as they are written."""
SMALL_BYTES = 64 * 1024
"""Work up to this size is judged where it arrives; larger work must not hold up everybody else."""


class Unsupported(CriteriaError):
    """Criteria that can be read, and whose code or assertions do not do what they must."""


class Ready(NamedTuple):
    """Criteria compiled, and in the form in which they are kept."""

    prepared: Prepared
    body: bytes
    """Canonical; its SHA-256 is the criteria's digest."""

    @property
    def digest(self) -> str:
        """The criteria's name for all time."""
        return self.prepared.plan.digest


class Submission(NamedTuple):
    """Work that somebody hands in."""

    input: Mapping[str, Any]
    output: Mapping[str, Any]
    metadata: Mapping[str, Any]
    labels: Labels = Labels()
    size: int = 0
    """Of all of it, in bytes, where that is known."""


class Judged(NamedTuple):
    """Work with its verdict, not yet recorded."""

    outcome_id: str
    submission: Submission
    ready: Ready
    result: VerificationResult
    result_json: bytes


class Registrar:
    """Judges work and keeps what was decided."""

    def __init__(self, engine: VerificationEngine, store: Store, *, max_criteria: int | None = None) -> None:
        self.engine = engine
        self.store = store
        self._max_criteria = max_criteria
        self._ready: OrderedDict[str, Ready] = OrderedDict()
        self._ready_bytes = 0
        self._remembering = threading.Lock()

    def ready(self, written: Mapping[str, Any] | SuccessCriteria) -> Ready:
        """Criteria that somebody wrote, compiled; raises CriteriaError with every problem."""
        if isinstance(written, SuccessCriteria):
            return self._compiled(written, None)
        key = payload_digest(written)
        found = self._recalled(key)
        if found is not None:
            return found
        known = self.engine.catalogue.names()
        return self._compiled(parse_criteria(written, known_metrics=known, max_criteria=self._max_criteria), key)

    def named(self, tenant: str, name: str, version: int | None = None) -> tuple[NamedCriteria, Ready]:
        """Registered criteria, compiled; raises NotFound, and Unavailable for what ran where they were registered."""
        with self.store.database.reading() as connection:
            found = named.find(connection, tenant, name, version)
            known = self._recalled(found.digest)
            if known is not None:
                return found, known
            body = outcomes.criteria_body(connection, tenant, found.digest)
        return found, self.committed(found.digest, body)

    def committed(self, digest: str, body: bytes) -> Ready:
        """Criteria that were committed to, compiled; raises Unavailable for what ran where they were registered."""
        known = self._recalled(digest)
        if known is not None:
            return known
        try:
            return self._compiled(outcomes.criteria_from(body), digest)
        except CriteriaError as refused:
            raise Unavailable("criteria", refused.problems) from None
        except Refusal as refused:
            raise Unavailable("criteria", [Problem("criteria", str(refused))]) from None

    def _recalled(self, key: str | None) -> Ready | None:
        if key is None:
            return None
        with self._remembering:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
            return found

    def _compiled(self, criteria: SuccessCriteria, key: str | None) -> Ready:
        body = canonical(criteria.model_dump(exclude_defaults=True))
        made = Ready(self.engine.compile_or_raise(criteria), body)
        if key is not None:
            self._keep(key, made)
        return made

    def _keep(self, key: str, made: Ready) -> None:
        with self._remembering:
            if key in self._ready:
                return
            self._ready[key] = made
            self._ready_bytes += len(made.body)
            while len(self._ready) > MAX_READY or self._ready_bytes > MAX_READY_BYTES:
                self._ready_bytes -= len(self._ready.popitem(last=False)[1].body)

    def sound(self, ready: Ready) -> None:
        """Raise Unsupported where an assertion is unknown, or the criteria's own code does not run."""
        problems = [
            Problem(f"criteria[{place}].{'.'.join(map(str, where))}", why)
            for place, criterion in enumerate(ready.prepared.plan.criteria.criteria)
            if criterion.assertion is not None
            for where, why in faults_of(criterion.assertion)
        ]
        troubles: list[Trouble] = try_out(ready.prepared, Work(), good=False)
        problems += [Problem(trouble.owner, trouble.message) for trouble in troubles]
        if problems:
            raise Unsupported("criteria", problems)

    async def judge(self, ready: Ready, submission: Submission) -> Judged:
        """The verdict on the work; whatever is wrong with the work is in it."""
        outcome_id = self.store.surroundings.new_id("out")
        arguments = (
            submission.labels.contract_id or outcome_id,
            submission.input,
            submission.output,
            ready.prepared,
            submission.metadata,
        )
        if submission.size > SMALL_BYTES:
            result = await asyncio.to_thread(self.engine.verify_sync, *arguments)
        else:
            result = await self.engine.verify(*arguments)
        return Judged(outcome_id, submission, ready, result, result.to_json())

    def judge_sync(self, ready: Ready, submission: Submission) -> Judged:
        """The same for callers without an event loop."""
        outcome_id = self.store.surroundings.new_id("out")
        contract_id = submission.labels.contract_id or outcome_id
        result = self.engine.verify_sync(
            contract_id, submission.input, submission.output, ready.prepared, submission.metadata
        )
        return Judged(outcome_id, submission, ready, result, result.to_json())

    def draft(self, tenant: str, judged: Judged) -> NewOutcome:
        """The outcome as the recorder takes it; large evidence is on disk when this returns."""
        work = judged.submission
        parts = (work.input, work.output, work.metadata)
        draft = drafted(self.store, tenant, judged.outcome_id, parts, judged.result, judged.ready.body)
        return draft._replace(labels=work.labels, result_json=judged.result_json)

    async def record(
        self,
        tenant: str,
        judged: Sequence[Judged],
        once: Idempotent | None = None,
        *,
        by_agent: bool = False,
    ) -> list[Recorded] | Replay:
        """Keep what was decided; answers when it is durable. What agents hand in themselves counts as an attempt."""

        def prepared() -> tuple[tuple[NewOutcome, ...], tuple[Attempt, ...]]:
            drafts = tuple(self.draft(tenant, one) for one in judged)
            return drafts, tuple(map(_attempt, judged)) if by_agent else ()

        if any(one.submission.size > SMALL_BYTES for one in judged):
            drafts, attempts = await asyncio.to_thread(prepared)
        else:
            drafts, attempts = prepared()
        return await self.store.recorder.record(RecordAll(drafts, once, tenant, attempts))

    def record_sync(self, tenant: str, judged: Judged) -> Recorded:
        """The same for callers without an event loop."""
        recorded = self.store.recorder.write(RecordAll((self.draft(tenant, judged),), None, tenant))
        # Without an idempotency key there is nothing to replay.
        assert not isinstance(recorded, Replay)  # noqa: S101
        return recorded[0]


def drafted(
    store: Store,
    tenant: str,
    outcome_id: str,
    work: tuple[Mapping[str, Any], ...],
    result: VerificationResult,
    criteria: bytes,
) -> NewOutcome:
    """A verdict on work, given as input, output and metadata, by criteria in canonical form: to be recorded."""
    addresses = (result.input_digest, result.output_digest, result.metadata_digest)
    given, left, facts = (
        _part(store, tenant, payload_bytes(payload), address) for payload, address in zip(work, addresses, strict=True)
    )
    return NewOutcome(
        tenant=tenant,
        id=outcome_id,
        labels=Labels(),
        input=given,
        output=left,
        metadata=facts,
        criteria=criteria,
        result=result,
        salts=store.surroundings.entropy(SALTS * SALT_BYTES),
    )


def _part(store: Store, tenant: str, content: bytes | None, address: str | None) -> Part:
    if content is None or address is None:
        raise MeruitError("only work that is plain JSON can be recorded")
    return store.shelf.part(tenant, content, address)


def _attempt(judged: Judged) -> Attempt:
    work = judged.submission
    return Attempt(work.labels.agent_id or "", public_mark(work.input), sketch(text_of(work.output)))
