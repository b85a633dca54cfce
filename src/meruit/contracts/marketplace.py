"""Publish work and judge completed contracts; other transitions are writes of their own."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from meruit.contracts.bill import hold_for
from meruit.contracts.latency import measure_latency, times_of
from meruit.contracts.rule_order import check_rules
from meruit.contracts.store import read as contracts
from meruit.contracts.store import work as works
from meruit.contracts.store.read import terms_of
from meruit.contracts.store.tampering import JudgedBy, find_disagreement
from meruit.contracts.store.transaction import Actor, ContractRequest, new_salt
from meruit.contracts.store.work import SubmitWork, WorkRow
from meruit.contracts.transitions import UNAVAILABLE, CompleteContract
from meruit.documents.document import sort_and_limit_problems
from meruit.documents.sanitize import describe
from meruit.errors import BrokenCriteria, CanaryShown, MeruitError, NullAgentPasses, Problem, RecordTampered
from meruit.governance.dossier import (
    CheatTraps,
    HandedIn,
    OutcomeIdentity,
    check_run_id,
    dossier_of,
    find_leaked_canaries,
    fingerprints_of,
    metadata_to_judge,
)
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
from meruit.outcomes.service import SMALL_BYTES, JudgedWork, Registrar, Submission
from meruit.store.lru import LruCache
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.lint.criteria import AT_ONCE, LintFinding, Severity, null_agents, prove_broken
from meruit.verify.lint.reach import IMPOSSIBLE

NO_CRITERIA = SuccessCriteria(criteria=())
MAX_CACHED = 256
"""How many works are cached."""
IMPLIED_BY_IMPOSSIBLE = frozenset({"never_met"}) | IMPOSSIBLE
"""Findings that are the purpose of work planted as impossible."""
IMPLIED_BY_NULL_AGENT = frozenset({"never_fails", "nothing_required"})
"""Findings that are the purpose of work which an agent may pass by doing nothing."""
VALIDATED_ELSEWHERE = frozenset({"unsupported_assertion"})
"""Findings that the registrar reports in more detail, and that cannot be accepted."""
NULL_AGENTS_MS = 5_000
"""How long the code of criteria may take for one agent that does nothing, all of it together."""
PATIENCE_S = 10.0
"""How long a remote governance service may take to answer before the contract is held."""


class ContractWithWork(msgspec.Struct, frozen=True):
    """A contract with its work and the input of the work."""

    contract: Contract
    work: WorkRow
    input: dict[str, Any]


class Marketplace:
    """Publishes work and judges what agents submit."""

    def __init__(
        self,
        registrar: Registrar,
        *,
        policy: Policy | None = Policy(),  # noqa: B008 - frozen
        remote: GovernanceClient | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        # Contracts ask governance themselves, with what was planted in the work and the agent's history.
        self.registrar = registrar.without_governance()
        self.store = registrar.store
        self.policy = policy
        """None where governance is off."""
        self._remote = remote
        self._patience_s = patience_s
        self._cached_works = LruCache[tuple[str, str], tuple[WorkRow, dict[str, Any]]](MAX_CACHED)

    def publish(self, actor: Actor, submission: WorkSubmission) -> SubmitWork:
        """Work ready to be recorded; raises CriteriaError, NullAgentPasses, CanaryShown, UnknownName, AmountTooLarge.

        Criteria that an idle agent meets are refused, unless the work says why it accepts them. So are criteria that
        lint proves wrong (BrokenCriteria), unless the work accepts the codes of the findings.
        """
        check_rules(submission.terms_in_force())
        _refuse_visible_canaries(submission)
        criteria = submission.success_criteria
        ready, findings = (None, ()) if criteria is None else self._compile_and_check(submission, criteria)
        if submission.terms.cpc_rate is not None:
            hold_for(criteria, submission.terms_in_force())
        content = payload_bytes(submission.input_for_judge())
        if content is None:
            raise MeruitError("the input is not valid JSON; use objects, lists, text, numbers, booleans and null")
        return SubmitWork(
            tenant=actor.tenant,
            by=actor.by,
            id=self.store.surroundings.new_id("wrk"),
            submission=submission,
            input=self.store.blobs.part(actor.tenant, content),
            input_salt=new_salt(self.store.surroundings.entropy),
            criteria=None if ready is None else ready.body,
            digest=None if ready is None else ready.digest,
            has_cpa=criteria is not None and any(one.bonus or one.penalty for one in criteria.criteria),
            findings=findings,
        )

    def _compile_and_check(
        self, submission: WorkSubmission, criteria: SuccessCriteria
    ) -> tuple[CompiledCriteria, tuple[str, ...]]:
        """The compiled criteria, and the codes of the proven errors that the work accepts."""
        ready, given = self.registrar.compile(criteria), submission.input_for_judge()
        findings = [one for one in prove_broken(ready, given) if one.code not in VALIDATED_ELSEWHERE]
        refused = [one for one in findings if one.code not in _codes_to_accept(submission)]
        if refused and ready.custom:
            # What needs no code to run is refused before any code runs.
            raise _criteria_error(ready, refused)
        self.registrar.validate(ready)
        passes = self._find_passing_null_agents(submission, ready)
        found = govern(Dossier(null_passes=passes), Policy() if self.policy is None else self.policy)
        if "null_agent_pass" in found.names and submission.accept_null_agent is None:
            why = (
                f"an agent that returns {' or '.join(passes)} would pass: add a criterion that it fails, or give the "
                "reason in accept_null_agent"
            )
            if not refused:
                raise NullAgentPasses(why)
            refused.append(LintFinding(Severity.ERROR, NullAgentPasses.code, why))
        if refused:
            raise _criteria_error(ready, refused)
        return ready, tuple(dict.fromkeys(finding.code for finding in findings))

    def _find_passing_null_agents(self, submission: WorkSubmission, ready: CompiledCriteria) -> list[str]:
        """The agents that do nothing and would pass."""
        # Nothing here is claimed to have happened, so governance is not asked.
        engine, given = self.registrar.engine.without_governance(), submission.input_for_judge()
        hastened = ready.limit_code_time(NULL_AGENTS_MS)
        return [
            name
            # An agent can echo only the public part of the input.
            for name, output in null_agents(submission.input).items()
            if _passes(engine.verify_sync("null", given, output, hastened, AT_ONCE))
        ]

    def find_contract(self, actor: Actor, contract_id: str) -> ContractWithWork:
        """The contract and its work; raises NotFound, and RecordTampered for what was not agreed on."""
        with self.store.database.reading() as connection:
            contract = contracts.find(connection, actor.scope, contract_id)
            known = self._cached_works.get((actor.tenant, contract.work_id))
            # What was cached while rows and log were changed together is read again.
            if known is not None and find_disagreement(connection, contract, known[0]) is None:
                return ContractWithWork(contract, *known)
            work = works.find(connection, actor.tenant, contract.work_id)
            differs = find_disagreement(connection, contract, work)
            if differs is not None:
                raise RecordTampered(f"contract {contract.id} is not what the audit log commits to: {differs}")
            case = ContractWithWork(
                contract=contract, work=work, input=works.input_of(connection, actor.tenant, work, self.store.blobs)
            )
        if len(payload_bytes(case.input) or b"") <= SMALL_BYTES:
            # Work never changes, and the award commits to it. Only small works are cached.
            self._cached_works.put((actor.tenant, work.id), (case.work, case.input))
        return case

    async def completion(self, request: ContractRequest, case: ContractWithWork, handed: HandedIn) -> CompleteContract:
        """Judge an output; the result is ready to be recorded, and settled or held. Raises Unavailable."""
        ready, submission, metadata = self._prepare_submission(case, handed)
        judged = await self.registrar.judge(ready, submission, request.actor.tenant)
        if handed.size > SMALL_BYTES:
            # Comparing long texts would block the event loop.
            dossier = await asyncio.to_thread(self._dossier, case, handed, metadata, judged.result)
        else:
            dossier = self._dossier(case, handed, metadata, judged.result)
        remote = (
            None if self._remote is None else await self._ask_remote_governance(self._remote, judged.result, dossier)
        )
        if handed.size > SMALL_BYTES:
            return await asyncio.to_thread(self._draft, request, case, handed, judged, dossier, remote)
        return self._draft(request, case, handed, judged, dossier, remote)

    def completion_sync(self, request: ContractRequest, case: ContractWithWork, handed: HandedIn) -> CompleteContract:
        """The same as `completion`, for callers without an event loop."""
        ready, submission, metadata = self._prepare_submission(case, handed)
        judged = self.registrar.judge_sync(ready, submission, request.actor.tenant)
        dossier = self._dossier(case, handed, metadata, judged.result)
        remote = None
        if self._remote is not None:
            remote = asyncio.run(self._ask_remote_governance(self._remote, judged.result, dossier))
        return self._draft(request, case, handed, judged, dossier, remote)

    def _prepare_submission(
        self, case: ContractWithWork, handed: HandedIn
    ) -> tuple[CompiledCriteria, Submission, dict[str, Any]]:
        check_run_id(handed.metadata)
        contract, work = case.contract, case.work
        if work.criteria is None or work.criteria_digest is None:
            ready = self.registrar.compile(NO_CRITERIA)
        else:
            ready = self.registrar.load_committed(work.criteria_digest, work.criteria)
        now = self.store.surroundings.clock()
        metadata = _metadata_to_judge(contract, handed, now)
        labels = Labels(contract.id, contract.agent_id, contract.consumer_id, contract.domain)
        return (
            ready,
            Submission(input=case.input, output=handed.output, metadata=metadata, labels=labels, size=handed.size),
            metadata,
        )

    def _dossier(
        self, case: ContractWithWork, handed: HandedIn, metadata: Mapping[str, Any], result: VerificationResult
    ) -> Dossier:
        if result.verdict is Verdict.ERROR:
            raise MeruitError("; ".join(reason.message for reason in result.reasons))
        contract, work = case.contract, case.work
        return dossier_of(
            OutcomeIdentity(
                contract_id=contract.id,
                work_id=contract.work_id,
                agent_id=contract.agent_id,
                consumer_id=contract.consumer_id,
            ),
            Work(output=handed.output, input=case.input, metadata=metadata),
            result,
            CheatTraps(work.submission.canaries, work.submission.impossible),
            claimed_may_earn=terms_of(contract).claimed_may_earn,
        )

    def _draft(
        self,
        request: ContractRequest,
        case: ContractWithWork,
        handed: HandedIn,
        judged: JudgedWork,
        dossier: Dossier,
        remote: GovernanceResult | None,
    ) -> CompleteContract:
        return CompleteContract(
            request=request,
            contract_id=case.contract.id,
            outcome=self.registrar.draft(request.actor.tenant, judged),
            dossier=dossier,
            fingerprints=fingerprints_of(
                case.contract,
                case.work.public(case.input),
                handed,
                _task(case.work.submission),
                by_run_id=terms_of(case.contract).pay_per_run,
            ),
            completion=completion_fingerprint(handed),
            salt=new_salt(self.store.surroundings.entropy),
            policy=self.policy,
            remote=remote,
            criteria=case.work.criteria,
            judged_by=JudgedBy.of(case.contract, case.work, judged.result.criteria_digest or ""),
            times=times_of(case.contract) if handed.by_agent else None,
        )

    async def _ask_remote_governance(
        self, client: GovernanceClient, result: VerificationResult, dossier: Dossier
    ) -> GovernanceResult:
        """The result of a remote governance service; no valid answer holds the contract for review."""
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
                # Any: a third party may answer anything.
                answer: Any = await client.validate_outcome(
                    contract_id=result.contract_id, claimed_metrics=dict(result.metrics), execution_context=context
                )
            if isinstance(answer, GovernanceResult):
                # Its fields are not validated yet: `valid="no"` would count as true.
                return GovernanceResult.from_json(answer.to_json())
            why = f"it answered {type(answer).__name__}"
        except TimeoutError:
            why = f"no answer within {self._patience_s:g} s"
        except Exception as problem:  # noqa: BLE001 - any failure of a third party holds the contract
            why = describe(problem)
        no_answer = Flag(UNAVAILABLE, "1", Action.HOLD, evidence={"why": why})
        return GovernanceResult(valid=True, flags=[no_answer], disposition=Disposition.HOLD, confidence=0.0)


def _codes_to_accept(submission: WorkSubmission) -> frozenset[str]:
    """The findings that the publisher insists on, by their codes or by what the work says of itself."""
    accepted = frozenset(submission.accept_findings)
    if submission.impossible:
        accepted |= IMPLIED_BY_IMPOSSIBLE
    if submission.accept_null_agent is not None:
        accepted |= IMPLIED_BY_NULL_AGENT
    return accepted


def _criteria_error(ready: CompiledCriteria, refused: Sequence[LintFinding]) -> BrokenCriteria:
    place = {rule.id: f"success_criteria.criteria[{rule.position}]" for rule in ready.plan.rules}
    problems = [
        Problem("success_criteria", finding.message, code=finding.code)
        if finding.criterion_id is None
        else Problem(place[finding.criterion_id], f"{finding.criterion_id}: {finding.message}", code=finding.code)
        for finding in refused
    ]
    return BrokenCriteria("work", sort_and_limit_problems(problems))


def _refuse_visible_canaries(submission: WorkSubmission) -> None:
    """Raise CanaryShown for a canary that agents can see, because quoting it would prove nothing."""
    public = {name: value for name, value in submission.input.items() if name not in PRIVATE_INPUTS}
    shown = {"said": [submission.title, submission.description, submission.domain or ""], "input": public}
    for canary in submission.canaries:
        if find_leaked_canaries((canary,), shown):
            raise CanaryShown(f"agents can see the canary {canary!r}; move it to a private input or a reference")


def _metadata_to_judge(contract: Contract, handed: HandedIn, now: datetime) -> dict[str, Any]:
    """The metadata to judge by; an agent's time is measured by the service's clock."""
    seen = measure_latency(times_of(contract), terms_of(contract).latency_from, now) if handed.by_agent else {}
    return metadata_to_judge(handed, seen, now)


def _task(submission: WorkSubmission) -> tuple[str | None, ...]:
    """The parts of the work that say what to do with its input."""
    return submission.title, submission.description, submission.domain


def completion_fingerprint(handed: HandedIn) -> str:
    """A fingerprint that is equal for equal completions of a contract."""
    return digest([payload_digest(handed.output), payload_digest(handed.metadata), dict(handed.claims)])


def _passes(result: VerificationResult) -> bool:
    return result.success or result.verdict is Verdict.PASS
