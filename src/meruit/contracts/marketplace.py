"""Work given out, contracts completed: judged here, believed, billed and recorded where the store writes it at once."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from meruit.contracts.bill import hold_for
from meruit.contracts.rule_order import check_rules
from meruit.contracts.store import read as contracts
from meruit.contracts.store import work as works
from meruit.contracts.store.read import terms_of
from meruit.contracts.store.transaction import Actor, Request, new_salt
from meruit.contracts.store.work import SubmitWork, WorkFound
from meruit.contracts.transitions import UNAVAILABLE, Complete
from meruit.errors import MeruitError
from meruit.governance.dossier import About, HandedIn, Planted, dossier_of, judged_metadata, leaked, marks_of
from meruit.governance.evaluate import govern
from meruit.model.canonical import digest, payload_bytes, payload_digest
from meruit.model.contract import Contract, WorkSubmission
from meruit.model.criterion import SuccessCriteria
from meruit.model.governance import (
    Action,
    Disposition,
    Dossier,
    Flag,
    GovernanceClient,
    GovernanceResult,
    Policy,
)
from meruit.model.outcome import Labels
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import PRIVATE_INPUTS, Work
from meruit.outcomes.service import SMALL_BYTES, Judged, Ready, Registrar, Submission
from meruit.outcomes.store.write import Idempotent
from meruit.registry import settlement_rules
from meruit.verify.lint.criteria import AT_ONCE, null_agents
from meruit.verify.sanitize import describe

NO_CRITERIA = SuccessCriteria(criteria=())
MAX_KNOWN = 256
"""Works that are kept at hand."""
PATIENCE_S = 10.0
"""How long somebody else's governance may take to answer; then a person must look."""


class NullAgentPasses(MeruitError):
    """Criteria that somebody passes by doing nothing."""


class CanaryShown(MeruitError):
    """A planted string that agents are shown, so that whoever quotes it would be caught."""


class Case(NamedTuple):
    """A contract about to be completed, with the work that it is on."""

    contract: Contract
    work: WorkFound
    input: dict[str, Any]


class Marketplace:
    """Publishes work and completes contracts; every other move is a write of its own."""

    def __init__(
        self,
        registrar: Registrar,
        *,
        policy: Policy | None = Policy(),  # noqa: B008 - frozen
        remote: GovernanceClient | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.registrar = registrar
        self.store = registrar.store
        self.policy = policy
        """None where nobody asks whether outcomes can be believed."""
        self._remote = remote
        self._patience_s = patience_s
        self._known: dict[tuple[str, str], tuple[WorkFound, dict[str, Any]]] = {}

    def publish(
        self,
        actor: Actor,
        submission: WorkSubmission,
        once: Idempotent | None = None,
        render: Callable[[WorkFound], bytes] = lambda _work: b"",
    ) -> SubmitWork:
        """Work ready to be recorded; raises CriteriaError, NullAgentPasses, CanaryShown, UnknownName and TooMuch.

        Criteria that an agent passes by doing nothing are refused, unless the work says why they are meant.
        """
        for name in submission.in_force().rules:
            settlement_rules.get(name)
        check_rules(submission.in_force())
        _refuse_shown(submission)
        criteria = submission.success_criteria
        ready = None if criteria is None else self._examined(submission, criteria)
        if submission.terms.cpc_rate is not None:
            hold_for(criteria, submission.in_force())
        content = payload_bytes(submission.judged_input())
        if content is None:
            raise MeruitError("the input is no plain JSON")
        return SubmitWork(
            tenant=actor.tenant,
            by=actor.by,
            id=self.store.surroundings.new_id("wrk"),
            submission=submission,
            input=self.store.shelf.part(actor.tenant, content),
            criteria=None if ready is None else ready.body,
            digest=None if ready is None else ready.digest,
            has_cpa=criteria is not None and any(one.bonus or one.penalty for one in criteria.criteria),
            once=once,
            render=render,
        )

    def _examined(self, submission: WorkSubmission, criteria: SuccessCriteria) -> Ready:
        ready = self.registrar.ready(criteria)
        self.registrar.sound(ready)
        engine, given = self.registrar.engine, submission.judged_input()
        passes = [
            name
            # Nobody echoes what no agent is shown.
            for name, output in null_agents(submission.input).items()
            if _passes(engine.verify_sync("null", given, output, ready.prepared, AT_ONCE))
        ]
        found = govern(Dossier(null_passes=passes), Policy() if self.policy is None else self.policy)
        if "null_agent_pass" in found.names and submission.accept_null_agent is None:
            raise NullAgentPasses(
                f"an agent that returns {' or '.join(passes)} would pass: add a criterion that it fails, or say in "
                "accept_null_agent why this is meant"
            )
        return ready

    def case(self, actor: Actor, contract_id: str) -> Case:
        """The contract and its work; raises NotFound."""
        with self.store.database.reading() as connection:
            contract = contracts.find(connection, actor.scope, contract_id)
            known = self._known.get((actor.tenant, contract.work_id))
            if known is not None:
                return Case(contract, *known)
            work = works.find(connection, actor.tenant, contract.work_id)
            case = Case(contract, work, works.input_of(connection, actor.tenant, work, self.store.shelf))
        if len(payload_bytes(case.input) or b"") <= SMALL_BYTES:
            # Work never changes; what is asked for often is small.
            self._known[actor.tenant, work.id] = case[1:]
            if len(self._known) > MAX_KNOWN:
                self._known.pop(next(iter(self._known)), None)
        return case

    async def completion(self, request: Request, case: Case, handed: HandedIn) -> Complete:
        """The verdict on an output, ready to be recorded, settled or held; raises Unavailable."""
        ready, submission, metadata = self._prepared(case, handed)
        judged = await self.registrar.judge(ready, submission)
        if handed.size > SMALL_BYTES:
            # Comparing long texts takes long enough to hold up everybody else.
            dossier = await asyncio.to_thread(self._dossier, case, handed, metadata, judged.result)
        else:
            dossier = self._dossier(case, handed, metadata, judged.result)
        remote = None if self._remote is None else await self._asked(self._remote, judged.result, dossier)
        if handed.size > SMALL_BYTES:
            return await asyncio.to_thread(self._draft, request, case, handed, judged, dossier, remote)
        return self._draft(request, case, handed, judged, dossier, remote)

    def completion_sync(self, request: Request, case: Case, handed: HandedIn) -> Complete:
        """The same for callers without an event loop."""
        ready, submission, metadata = self._prepared(case, handed)
        judged = self.registrar.judge_sync(ready, submission)
        dossier = self._dossier(case, handed, metadata, judged.result)
        remote = None
        if self._remote is not None:
            remote = asyncio.run(self._asked(self._remote, judged.result, dossier))
        return self._draft(request, case, handed, judged, dossier, remote)

    def _prepared(self, case: Case, handed: HandedIn) -> tuple[Ready, Submission, dict[str, Any]]:
        contract, work = case.contract, case.work
        if work.criteria is None or work.criteria_digest is None:
            ready = self.registrar.ready(NO_CRITERIA)
        else:
            ready = self.registrar.committed(work.criteria_digest, work.criteria)
        now = self.store.surroundings.clock()
        metadata = _judged_metadata(contract, handed, now)
        labels = Labels(contract.id, contract.agent_id, contract.consumer_id, contract.domain)
        return ready, Submission(case.input, handed.output, metadata, labels, handed.size), metadata

    def _dossier(
        self, case: Case, handed: HandedIn, metadata: Mapping[str, Any], result: VerificationResult
    ) -> Dossier:
        if result.verdict is Verdict.ERROR:
            raise MeruitError("; ".join(reason.message for reason in result.reasons))
        contract, work = case.contract, case.work
        return dossier_of(
            About(contract.id, contract.work_id, contract.agent_id, contract.consumer_id),
            Work(output=handed.output, input=case.input, metadata=metadata),
            result,
            Planted(work.submission.canaries, work.submission.impossible),
            claimed_may_earn=terms_of(contract).claimed_may_earn,
        )

    def _draft(
        self,
        request: Request,
        case: Case,
        handed: HandedIn,
        judged: Judged,
        dossier: Dossier,
        remote: GovernanceResult | None,
    ) -> Complete:
        return Complete(
            request=request,
            contract_id=case.contract.id,
            outcome=self.registrar.draft(request.actor.tenant, judged),
            dossier=dossier,
            marks=marks_of(case.contract, case.work.public(case.input), handed, _task(case.work.submission)),
            completion=completion_mark(handed),
            salt=new_salt(self.store.surroundings.entropy),
            policy=self.policy,
            remote=remote,
            criteria=case.work.criteria,
        )

    async def _asked(self, client: GovernanceClient, result: VerificationResult, dossier: Dossier) -> GovernanceResult:
        """What somebody else's governance makes of it; no answer means that a person must look."""
        context = {
            "agent_id": dossier.agent_id,
            "work_id": dossier.work_id,
            "consumer_id": dossier.consumer_id,
            "claimed_metrics": dossier.claims,
            "measured_metrics": dict(result.metrics),
            "dossier": dossier.to_dict(),
        }
        try:
            async with asyncio.timeout(self._patience_s):
                # Any: a stranger may answer anything.
                answer: Any = await client.validate_outcome(
                    contract_id=result.contract_id, claimed_metrics=dict(result.metrics), execution_context=context
                )
            if isinstance(answer, GovernanceResult):
                # Nothing has looked at its fields yet: a validity of "no" would count as true.
                return GovernanceResult.from_json(answer.to_json())
            why = f"it answered {type(answer).__name__}"
        except TimeoutError:
            why = f"no answer within {self._patience_s:g} s"
        except Exception as problem:  # noqa: BLE001 - whatever a stranger does, nobody is paid by mistake
            why = describe(problem)
        silent = Flag(UNAVAILABLE, "1", Action.HOLD, evidence={"why": why})
        return GovernanceResult(valid=True, flags=[silent], disposition=Disposition.HOLD, confidence=0.0)


def _refuse_shown(submission: WorkSubmission) -> None:
    """Raise CanaryShown for a canary that an agent could quote without having seen a reference."""
    public = {name: value for name, value in submission.input.items() if name not in PRIVATE_INPUTS}
    shown = {"said": [submission.title, submission.description, submission.domain or ""], "input": public}
    for canary in submission.canaries:
        if leaked((canary,), shown):
            raise CanaryShown(f"agents are shown the canary {canary!r}, and whoever quotes it would be caught; hide it")


def _judged_metadata(contract: Contract, handed: HandedIn, now: datetime) -> dict[str, Any]:
    """The metadata that is judged; an agent that never said when it began is timed from the award."""
    begun = contract.started_at or contract.awarded_at
    metadata = judged_metadata(handed, (now - begun).total_seconds() * 1000, now)
    if handed.by_agent and contract.started_at is None:
        # Nobody saw it begin: to tell of less time than since the award is no lie, and earns nothing.
        del metadata["observed_ms"]
    return metadata


def _task(submission: WorkSubmission) -> tuple[str | None, ...]:
    """What is asked about the input."""
    return submission.title, submission.description, submission.domain


def completion_mark(handed: HandedIn) -> str:
    """What makes two completions of one contract the same."""
    return digest([payload_digest(handed.output), payload_digest(handed.metadata), dict(handed.claims)])


def _passes(result: VerificationResult) -> bool:
    return result.success or result.verdict is Verdict.PASS
