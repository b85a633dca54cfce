"""Every move of a contract, written with its log entry, its money and what it is told: all of it, or nothing."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import bindparam, select, update

from meruit.judge.verdict import governed, rejudge
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState, Escrow, SettleWhen, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.errors import UnknownName
from meruit.model.events import EventType
from meruit.model.governance import Disposition, Dossier, GovernanceCheck, GovernanceResult, Policy
from meruit.model.money import Bill, TokenUse
from meruit.model.numbers import in_units
from meruit.model.outcome import from_micros
from meruit.model.prices import Ledger
from meruit.model.verdict import GovernanceStatus, Reason, ReasonCode, VerificationResult
from meruit.money import ledger, lifecycle
from meruit.money.bill import RuleFailed, bill, hold_for
from meruit.money.lifecycle import Decision, Operation, WrongState
from meruit.money.payable import PAYABLE, why_asked, why_held
from meruit.money.token_terms import settled_of, token_use, why_usage_waits
from meruit.stores import tables
from meruit.stores.contracts import FIND, Judgement, Standing, found_among, row_of, terms_body, terms_of
from meruit.stores.database import NotFound
from meruit.stores.ledger import Movement, move_money, parties_of
from meruit.stores.memory import forget_settled, recalled, remember, remember_settled, settled_under
from meruit.stores.outcomes import criteria_from
from meruit.stores.records import (
    AddVersions,
    Idempotent,
    NewOutcome,
    NewVersion,
    Replay,
    keep_reply,
    replayed,
    result_from,
)
from meruit.stores.usage_contracts import as_written
from meruit.stores.usage_runs import Price
from meruit.stores.works import WorkFound, find_for_writing
from meruit.stores.writing import Writing
from meruit.trust.checking import NO_CRITERIA
from meruit.trust.commitment import SALT_BYTES, commitment
from meruit.trust.entries import (
    AwardEntry,
    DisputeEntry,
    GovernanceEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
)
from meruit.trust.governance import asked_rules, govern, together
from meruit.trust.memory import Marks

UNAVAILABLE = "governance_unavailable"
DUPLICATE = "duplicate_claim"
RULE_FAILED = "rule_failed"
USAGE_UNVERIFIED = "usage_unverified"
_CHANGING = (
    *("state", "escrow", "started_at", "completed_at", "settled_at", "outcome_id", "completion", "evidence"),
    *("settlement", "settlements", "version", "total_micros", "disputed_from", "disputes", "hold_reason"),
)
_UPDATE = (
    update(tables.contracts)
    .where(tables.contracts.c.tenant == bindparam("of_tenant"), tables.contracts.c.id == bindparam("of_id"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)


class Actor(NamedTuple):
    """Who does it."""

    scope: Scope
    by: str
    """The public half of a key, or `command line`."""

    @property
    def tenant(self) -> str:
        """Whose contracts."""
        return self.scope.tenant


class Request(NamedTuple):
    """Who asks, whether it may come twice, and how the answer is written."""

    actor: Actor
    once: Idempotent | None = None
    render: Callable[[Standing], bytes] = lambda _standing: b""
    """The reply that a second request of the same key is given."""


def fingerprint(*parts: str) -> str:
    """What makes two requests for one move the same."""
    return sha256("\0".join(parts).encode()).hexdigest()


BY_USAGE = fingerprint("usage")
"""How a reversal is marked that comes of tokens which are not verified any more."""


class _Step(NamedTuple):
    """One contract in the middle of a write."""

    writing: Writing
    actor: Actor

    @property
    def tenant(self) -> str:
        return self.actor.tenant

    @property
    def now(self) -> datetime:
        return from_micros(self.writing.now.micros)

    def load(self, contract_id: str) -> Contract:
        """The contract as it stands, what earlier callers of the group did to it included; raises NotFound."""
        known: Contract | None = self.writing.known(("contract_row", self.tenant, contract_id))
        scope = self.actor.scope
        if known is not None:
            if scope.only_own and known.agent_id != scope.agent_id:
                raise NotFound(f"no contract {contract_id!r}")
            return known
        return found_among(self.writing.ask(FIND, self.tenant, contract_id), scope, contract_id)

    def save(self, contract: Contract) -> None:
        row = row_of(contract)
        self.writing.learn(("contract_row", self.tenant, contract.id), contract)
        self.writing.change(
            _UPDATE, of_tenant=self.tenant, of_id=contract.id, **{f"new_{name}": row[name] for name in _CHANGING}
        )

    def standing(self, contract: Contract) -> Standing:
        """The contract with its verdict and bill."""
        judgement = None if contract.outcome_id is None else self.judgement(contract.outcome_id)
        return Standing(contract, judgement, self.bill_of(contract) if contract.settlement else None)

    def judgement(self, outcome_id: str) -> Judgement:
        known = self.writing.known(("verdict", self.tenant, outcome_id))
        if known is None:
            table = tables.verdicts
            query = (
                select(table.c.version, table.c.result)
                .where(table.c.tenant == self.tenant, table.c.outcome_id == outcome_id)
                .order_by(table.c.version.desc())
                .limit(1)
            )
            (row,) = self.writing.read(query)
            known = (row.version, row.result)
        if self.writing.known(("erased", self.tenant, outcome_id)):
            known = (known[0], None)
        return Judgement(known[0], result_from(known[1]))

    def bill_of(self, contract: Contract) -> Bill:
        known: Bill | None = self.writing.known(("bill", self.tenant, contract.id, str(contract.settlement)))
        if known is not None:
            return known
        table = tables.settlements
        query = select(table.c.bill).where(
            table.c.tenant == self.tenant,
            table.c.contract_id == contract.id,
            table.c.number == contract.settlement,
        )
        return Bill.from_json(self.writing.read(query)[0].bill)

    def usage(self, contract: Contract) -> tuple[TokenUse, ...]:
        """The tokens that the contract is paid by, as far as anybody knows them; none where it is not."""
        if not terms_of(contract).prices_tokens:
            return ()
        return tuple(map(token_use, as_written(self.writing, self.tenant, contract.id)))

    def note(self, contract: Contract, operation: Operation, number: int, mark: str, reason: str = "") -> None:
        """The row that answers a second request."""
        self.writing.learn(("move", self.tenant, contract.id, str(operation), str(number)), mark)
        self.writing.insert(
            *(tables.moves, self.tenant, contract.id, str(operation), number, mark),
            *(self.writing.now.micros, self.actor.by, reason),
        )

    def done_before(self, contract: Contract, operation: Operation, number: int, mark: str) -> bool:
        """Whether just this was asked for, and done."""
        known = self.writing.known(("move", self.tenant, contract.id, str(operation), str(number)))
        if known is None:
            table = tables.moves
            rows = self.writing.read(
                select(table.c.fingerprint).where(
                    table.c.tenant == self.tenant,
                    table.c.contract_id == contract.id,
                    table.c.operation == str(operation),
                    table.c.number == number,
                )
            )
            known = rows[0].fingerprint if rows else None
        return bool(known == mark)

    def head(self, contract: Contract) -> tuple[str, str, str, str, int]:
        """How every entry of the contract begins."""
        number = self.writing.next_in_contract(self.tenant, contract.id)
        return (self.writing.now.written, self.tenant, contract.outcome_id or "", contract.id, number)

    def append(self, entry: Any) -> int:
        return self.writing.append(entry, self.tenant, entry.contract, entry.contract_seq)

    def tell(self, contract: Contract, kind: EventType, number: int = 0, **more: Any) -> None:
        data = {
            "contract_id": contract.id,
            "work_id": contract.work_id,
            "agent_id": contract.agent_id,
            "consumer_id": contract.consumer_id,
            "state": str(contract.state),
            "outcome_id": contract.outcome_id,
            **more,
        }
        self.writing.emit(self.tenant, kind, contract.id, f"{contract.id}:{kind}:{number}", data)

    def refuse_or_replay(
        self, contract: Contract, operation: Operation, number: int, mark: str, problem: WrongState
    ) -> Standing:
        """What was done already is answered as it was; anything else is refused."""
        if self.done_before(contract, operation, number, mark):
            return self.standing(contract)
        raise problem


Answer = Standing | Replay


def _answered(writing: Writing, request: Request, act: Callable[[_Step], Standing]) -> Answer:
    """The first request of a key acts, later ones are told what it was told."""
    once, tenant = request.once, request.actor.tenant
    if once is not None:
        before = replayed(writing, tenant, once)
        if before is not None:
            return before
    standing = act(_Step(writing, request.actor))
    if once is not None:
        keep_reply(writing, tenant, once._replace(reply=request.render(standing)))
    return standing


class Award(NamedTuple):
    """A contract on some work, and the money put aside for it."""

    request: Request
    contract_id: str
    work_id: str
    agent_id: str
    cpc_rate: Any = None
    """What this agent is paid for completion; what the work offers when not given."""

    def __call__(self, writing: Writing) -> Answer:
        """Make it; raises NotFound, and WrongState for terms that cannot be."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        work = find_for_writing(step.writing, step.tenant, self.work_id)
        terms = self._terms(work)
        criteria = None if work.criteria is None else _criteria(work.criteria)
        body, hold = terms_body(terms), hold_for(criteria, terms)
        contract = Contract(
            id=self.contract_id,
            seq=0,
            work_id=work.id,
            agent_id=self.agent_id,
            consumer_id=work.consumer_id,
            domain=work.submission.domain,
            state=ContractState.AWARDED,
            escrow=Escrow.HELD,
            currency=terms.currency,
            hold_micros=hold,
            terms=body,
            awarded_at=step.now,
            expires_at=step.now + timedelta(hours=terms.deadline_hours),
        )
        leaf = step.append(
            AwardEntry(
                *step.head(contract),
                *(work.id, sha256(work.body).hexdigest(), self.agent_id, work.consumer_id, work.criteria_digest or ""),
                *(sha256(body).hexdigest(), terms.currency, hold, step.actor.by),
            )
        )
        contract = msgspec.structs.replace(contract, seq=leaf)
        step.writing.insert(tables.contracts, step.tenant, *row_of(contract).values())
        step.writing.learn(("contract_row", step.tenant, contract.id), contract)
        move_money(
            step.writing, Movement(step.tenant, contract, "hold", 0, ledger.hold(parties_of(contract), hold)), leaf
        )
        step.note(contract, Operation.AWARD, 0, fingerprint(work.id, self.agent_id, str(self.cpc_rate)))
        step.tell(contract, EventType.CONTRACT_AWARDED, hold=in_units(hold), currency=terms.currency)
        return Standing(contract)

    def _terms(self, work: WorkFound) -> Terms:
        terms, ceiling = work.submission.in_force(), work.submission.budget.max_cpc
        rate = terms.cpc_rate if self.cpc_rate is None else self.cpc_rate
        if rate is None:
            raise WrongState("no_rate", f"work {work.id} names no terms.cpc_rate; give cpc_rate with the award")
        offered = [one for one in (terms.cpc_rate, ceiling) if one is not None]
        if offered and rate > min(offered):
            raise WrongState("above_budget", f"work {work.id} pays at most {min(offered)} for completion, not {rate}")
        return terms.model_copy(update={"cpc_rate": rate})


class Start(NamedTuple):
    """The agent begins; from here on its time is taken."""

    request: Request
    contract_id: str

    def __call__(self, writing: Writing) -> Answer:
        """Mark the beginning; a second time changes nothing."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        mark = fingerprint("start")
        try:
            contract = lifecycle.started(contract, step.now)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.START, 0, mark, problem)
        step.save(contract)
        step.note(contract, Operation.START, 0, mark)
        step.tell(contract, EventType.CONTRACT_STARTED)
        return Standing(contract)


class Complete(NamedTuple):
    """An output with the verdict on it: believed or not, billed and settled, or held."""

    request: Request
    contract_id: str
    outcome: NewOutcome
    dossier: Dossier
    marks: Marks
    completion: str
    """What makes two completions the same."""
    salt: bytes
    policy: Policy | None
    remote: GovernanceResult | None = None
    criteria: bytes | None = None
    """Of the work, in canonical form; None for work that is paid by completion alone."""

    def __call__(self, writing: Writing) -> Answer:
        """Do all of it at once; the same output a second time is told what the first was."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        if contract.completion is not None:
            if contract.completion == self.completion:
                return step.standing(contract)
            raise WrongState(
                "already_completed",
                f"contract {contract.id} was completed with another output, or with other metadata; that one counts",
            )
        contract = lifecycle.completed(contract, step.now, self.outcome.id, self.completion, self.marks.evidence)
        step.note(contract, Operation.COMPLETE, 0, self.completion)
        step.tell(contract, EventType.CONTRACT_COMPLETED)
        checked = self._checked(step, contract)
        result = self.outcome.result if checked is None else _governed(self.outcome.result, checked.result)
        key = None if self.request.once is None else self.request.once.key
        self.outcome._replace(result=result, result_json=result.to_json(), idempotency_key=key).write(step.writing)
        if checked is not None:
            _keep_check(step, contract, 1, checked, self.salt)
        contract, paid = _pay_or_hold(step, contract, Judgement(1, result), self.criteria)
        self._remember(step, contract, checked, paid)
        step.save(contract)
        return Standing(contract, Judgement(1, result), paid)

    def _checked(self, step: _Step, contract: Contract) -> GovernanceCheck | None:
        if self.policy is None and self.remote is None:
            return None
        dossier = recalled(step.writing, step.tenant, contract, self.dossier, self.marks)
        answers = [] if self.policy is None else [govern(dossier, self.policy)]
        answers += [] if self.remote is None else [self.remote]
        result = answers[0] if len(answers) == 1 else together(*answers)
        return GovernanceCheck(dossier, self.policy, asked_rules(self.policy), self.remote, result)

    def _remember(self, step: _Step, contract: Contract, checked: GovernanceCheck | None, paid: Bill | None) -> None:
        flags = [] if checked is None else checked.result.names
        remember(
            *(step.writing, step.tenant, contract, self.dossier, self.marks),
            mismatch="latency_mismatch" in flags,
            bonus=paid is not None and paid.bonus > 0,
            said=None if checked is None else checked.result,
        )


def _governed(result: VerificationResult, said: GovernanceResult) -> VerificationResult:
    """The result with what governance makes of it."""
    named = ", ".join(said.names)
    match said.concluded:
        case Disposition.CLEAR:
            return governed(result, GovernanceStatus.CLEAR, said.names)
        case Disposition.INVALID:
            reason = Reason(ReasonCode.GOVERNANCE_INVALID, f"governance rejects the outcome: {named}")
            return governed(result, GovernanceStatus.INVALID, said.names, reason)
        case Disposition.HOLD if UNAVAILABLE in said.names:
            reason = Reason(ReasonCode.GOVERNANCE_UNAVAILABLE, "governance gave no clear answer; a person must look")
            return governed(result, GovernanceStatus.REVIEW, said.names, reason)
        case Disposition.HOLD:
            reason = Reason(ReasonCode.GOVERNANCE_HOLD, f"a person must look: {named}")
            return governed(result, GovernanceStatus.REVIEW, said.names, reason)


def _keep_check(step: _Step, contract: Contract, version: int, checked: GovernanceCheck, salt: bytes) -> None:
    body = checked.to_json()
    disposition = str(checked.result.concluded)
    leaf = step.append(
        GovernanceEntry(*step.head(contract), version, disposition, tuple(checked.result.names), commitment(salt, body))
    )
    step.writing.insert(
        *(tables.governance_checks, step.tenant, contract.outcome_id, version, disposition),
        *(step.writing.now.micros, leaf, salt, body),
    )


def _pay_or_hold(
    step: _Step, contract: Contract, judgement: Judgement, criteria: bytes | None
) -> tuple[Contract, Bill | None]:
    assert judgement.result is not None  # noqa: S101 - just judged
    usage, terms = step.usage(contract), terms_of(contract)
    owed, held = None, why_held(judgement.result, None if criteria is None else _criteria(criteria), terms, usage)
    if not held and terms.settle is SettleWhen.AT_ONCE:
        try:
            owed = bill(judgement.result, terms, contract.hold_micros, usage)
        except (RuleFailed, UnknownName) as problem:
            held = str(problem)
    if held:
        contract = lifecycle.held(contract, held)
        step.tell(contract, EventType.CONTRACT_HELD, contract.settlements, reason=held)
        return contract, None
    contract = _verified(step, contract, judgement.result)
    return (contract, None) if owed is None else (_paid(step, contract, judgement.version, owed), owed)


def _why_asked(contract: Contract, result: VerificationResult, criteria: bytes | None) -> str:
    return why_asked(result, None if criteria is None else _criteria(criteria), terms_of(contract))


def _refuse_unverified(step: _Step, contract: Contract) -> None:
    """Raise WrongState while tokens that are priced are not verified; nobody's word stands in for that."""
    waits = why_usage_waits(step.usage(contract), terms_of(contract))
    if waits:
        raise WrongState(
            USAGE_UNVERIFIED, f"contract {contract.id} waits: {waits}; it is paid when its tokens are known, or void it"
        )


@lru_cache(maxsize=256)
def _criteria(body: bytes) -> SuccessCriteria:
    """Criteria from their canonical form; many contracts have the same, and they are frozen."""
    return criteria_from(body)


def _verified(step: _Step, contract: Contract, result: VerificationResult) -> Contract:
    contract = lifecycle.verified(contract, success=result.success)
    kind = EventType.CONTRACT_VERIFIED if result.success else EventType.CONTRACT_FAILED
    step.tell(contract, kind, contract.settlements, verdict=result.verdict, success=result.success)
    return contract


def _pay(step: _Step, contract: Contract, judgement: Judgement, reason: str = "") -> tuple[Contract, Bill]:
    """Settle a verdict by the bill that the terms give."""
    assert judgement.result is not None  # noqa: S101 - whoever calls has looked
    owed = _owed(step, contract, judgement.result)
    return _paid(step, contract, judgement.version, owed, reason), owed


def _owed(step: _Step, contract: Contract, result: VerificationResult) -> Bill:
    """The bill that the terms give; raises WrongState where a rule gives none."""
    try:
        return bill(result, terms_of(contract), contract.hold_micros, step.usage(contract))
    except (RuleFailed, UnknownName) as problem:
        raise WrongState(RULE_FAILED, f"contract {contract.id} cannot be billed: {problem}; mend it or void") from None


def _paid(step: _Step, contract: Contract, version: int, owed: Bill, reason: str = "") -> Contract:
    """Settle a verdict: the bill, the transfer, the entry, the row and the event."""
    contract = lifecycle.settled(contract, step.now, version, owed.total)
    kept = owed.to_json()
    leaf = step.append(
        SettlementEntry(
            *step.head(contract),
            *(contract.settlement, version),
            owed.currency,
            *(owed.base, owed.bonus, owed.penalty, owed.total, owed.fee, owed.payout, owed.released),
            *(sha256(kept).hexdigest(), step.actor.by, reason),
        )
    )
    step.writing.insert(
        *(tables.settlements, step.tenant, contract.id, contract.settlement, contract.outcome_id),
        *(version, step.writing.now.micros, leaf, kept),
    )
    step.writing.learn(("bill", step.tenant, contract.id, str(contract.settlement)), owed)
    postings = ledger.settle(parties_of(contract), owed)
    move_money(step.writing, Movement(step.tenant, contract, "settle", contract.settlement, postings), leaf)
    step.note(contract, Operation.SETTLE, contract.settlement, fingerprint("settle", str(version)), reason)
    if contract.evidence is not None:
        remember_settled(step.writing, step.tenant, contract, contract.evidence)
    _tell_runs(step, contract, owed)
    step.tell(
        *(contract, EventType.CONTRACT_SETTLED, contract.settlement),
        version=version,
        settlement=contract.settlement,
        currency=owed.currency,
        total=in_units(owed.total),
        payout=in_units(owed.payout),
        fee=in_units(owed.fee),
    )
    return contract


def _tell_runs(step: _Step, contract: Contract, owed: Bill) -> None:
    """What was settled for each run's tokens stands beside what they cost, where both are in one currency."""
    if owed.currency != Ledger().currency:
        return
    for run_id, amount in settled_of(owed, terms_of(contract)).items():
        Price(step.tenant, run_id, ledger=Ledger(settled=amount))(step.writing)


class Settle(NamedTuple):
    """Pay what a clear verdict is worth."""

    request: Request
    contract_id: str

    def __call__(self, writing: Writing) -> Answer:
        """Pay it; what is settled already is told as it was."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        if contract.state is ContractState.SETTLED:
            return step.standing(contract)
        lifecycle.check(contract, Operation.SETTLE)
        judgement, work = _judged(step, contract)
        assert judgement.result is not None  # noqa: S101 - just looked
        held = _why_asked(contract, judgement.result, work.criteria)
        if held:
            raise WrongState("on_hold", f"contract {contract.id} is held: {held}; release it or void it")
        _refuse_unverified(step, contract)
        _refuse_paid_run(step, contract, judgement.result)
        if contract.state is ContractState.VERIFICATION_PENDING:
            contract = _verified(step, contract, judgement.result)
        judgement = _renewed(step, contract, judgement)
        contract, paid = _pay(step, contract, judgement)
        step.save(contract)
        return Standing(contract, judgement, paid)


def _refuse_paid_run(step: _Step, contract: Contract, result: VerificationResult) -> None:
    """Raise WrongState where another contract was paid for the same run since governance looked."""
    other = settled_under(step.writing, step.tenant, contract, contract.evidence)
    if other is not None and DUPLICATE not in result.governance_flags:
        raise WrongState(DUPLICATE, f"the run of contract {contract.id} was paid under {other} meanwhile; call it off")


def _judged(step: _Step, contract: Contract) -> tuple[Judgement, WorkFound]:
    """The latest verdict, its result still there, and the work that it is on; raises WrongState."""
    if contract.outcome_id is None:
        raise WrongState("wrong_state", f"contract {contract.id} has no output yet")
    judgement = step.judgement(contract.outcome_id)
    if judgement.result is None:
        raise WrongState("erased", f"what contract {contract.id} was judged on was erased; void it")
    work = find_for_writing(step.writing, step.tenant, contract.work_id)
    if judgement.result.criteria_digest != (work.criteria_digest or NO_CRITERIA):
        raise WrongState(
            "other_criteria",
            f"version {judgement.version} of the verdict on contract {contract.id} was reached by other criteria than "
            "the contract's, which nobody agreed to be paid by; rescore it by those",
        )
    return judgement, work


class Release(NamedTuple):
    """A person has looked at what was held, and lets it be paid."""

    request: Request
    contract_id: str
    reason: str
    salt: bytes

    def __call__(self, writing: Writing) -> Answer:
        """Settle it; where governance objected, as a new version of the verdict that says who overruled it."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        number, mark = contract.settlements + 1, fingerprint("release", self.reason)
        try:
            lifecycle.check(contract, Operation.RELEASE)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.RELEASE, contract.settlements, mark, problem)
        _refuse_unverified(step, contract)
        judgement = _renewed(step, contract, self._stands(step, contract, _judged(step, contract)[0]))
        assert judgement.result is not None  # noqa: S101 - just judged again
        # Who releases what was flagged as a second claim knows of it; of one that came up since, nobody was told.
        _refuse_paid_run(step, contract, judgement.result)
        step.note(contract, Operation.RELEASE, number, mark, self.reason)
        step.tell(contract, EventType.CONTRACT_RELEASED, number, reason=self.reason, by=step.actor.by)
        contract = _verified(step, contract, judgement.result)
        contract, paid = _pay(step, contract, judgement, f"released: {self.reason}")
        step.save(contract)
        return Standing(contract, judgement, paid)

    def _stands(self, step: _Step, contract: Contract, judgement: Judgement) -> Judgement:
        result = judgement.result
        assert result is not None and contract.outcome_id is not None  # noqa: S101, PT018 - just looked
        if result.governance in PAYABLE:
            return judgement
        body = _criteria_body(step, result.criteria_digest or "")
        unheld = msgspec.structs.replace(result, governance=GovernanceStatus.NOT_CHECKED, verified_at=step.now)
        again = governed(rejudge(criteria_from(body), unheld), GovernanceStatus.RELEASED, result.governance_flags)
        new = NewVersion(contract.outcome_id, judgement.version, again, self.salt)
        done = AddVersions(step.tenant, body, (new,), f"released by {step.actor.by}: {self.reason}")(step.writing)
        if not done:
            raise WrongState("judged_meanwhile", f"contract {contract.id} was judged again just now; ask again")
        return Judgement(done[0].version, again)


def _taken_back_by_usage(step: _Step, contract: Contract) -> bool:
    return step.done_before(contract, Operation.REVERSE, contract.settlements, BY_USAGE)


def _renewed(step: _Step, contract: Contract, judgement: Judgement) -> Judgement:
    """The verdict, once more where it was settled before and taken back for its tokens alone: each is paid by once."""
    if judgement.version > contract.version or not _taken_back_by_usage(step, contract):
        return judgement
    result = judgement.result
    assert result is not None and contract.outcome_id is not None  # noqa: S101, PT018 - just looked
    again = msgspec.structs.replace(result, verified_at=step.now)
    # Nobody can guess it: an id holds eighty random bits.
    salt = sha256(step.writing.new_id("salt").encode()).digest()[:SALT_BYTES]
    new = NewVersion(contract.outcome_id, judgement.version, again, salt)
    body = _criteria_body(step, result.criteria_digest or "")
    done = AddVersions(step.tenant, body, (new,), "its tokens are verified again")(step.writing)
    if not done:
        raise WrongState("judged_meanwhile", f"contract {contract.id} was judged again just now; ask again")
    return Judgement(done[0].version, again)


def _criteria_body(step: _Step, digest: str) -> bytes:
    table = tables.criteria
    rows = step.writing.read(select(table.c.body).where(table.c.tenant == step.tenant, table.c.digest == digest))
    if not rows:
        # Criteria that a caller of the same group committed to are not there to be read yet.
        raise WrongState("judged_meanwhile", "the contract was judged just now; ask again")
    return bytes(rows[0].body)


class Void(NamedTuple):
    """Nobody is paid: the escrow goes back."""

    request: Request
    contract_id: str
    reason: str

    def __call__(self, writing: Writing) -> Answer:
        """Give it back; a second time changes nothing."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        mark = fingerprint("void", self.reason)
        try:
            lifecycle.check(contract, Operation.VOID)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.VOID, 0, mark, problem)
        contract = _called_off(step, contract, mark, self.reason)
        step.save(contract)
        return step.standing(contract)


def _called_off(step: _Step, contract: Contract, mark: str, reason: str) -> Contract:
    contract = lifecycle.voided(contract)
    _give_back(step, contract, "void", reason)
    step.note(contract, Operation.VOID, 0, mark, reason)
    step.tell(contract, EventType.CONTRACT_VOIDED, reason=reason, by=step.actor.by)
    return contract


def _give_back(step: _Step, contract: Contract, why: str, reason: str) -> None:
    leaf = step.append(
        ReleaseEntry(*step.head(contract), contract.currency, contract.hold_micros, why, step.actor.by, reason)
    )
    postings = ledger.release(parties_of(contract), contract.hold_micros)
    move_money(step.writing, Movement(step.tenant, contract, "release", 0, postings), leaf)


class Reverse(NamedTuple):
    """What was paid comes back into escrow, to be settled by a later verdict or called off."""

    request: Request
    contract_id: str
    reason: str

    def __call__(self, writing: Writing) -> Answer:
        """Take it back; a second time changes nothing."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        mark = fingerprint("reverse", self.reason)
        try:
            lifecycle.check(contract, Operation.REVERSE)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.REVERSE, contract.settlements, mark, problem)
        contract = _taken_back(step, contract, mark, self.reason)
        step.save(contract)
        return step.standing(contract)


def _taken_back(step: _Step, contract: Contract, mark: str, reason: str) -> Contract:
    paid, number = step.bill_of(contract), contract.settlement
    contract = lifecycle.reversed_(contract, f"reversed: {reason}")
    leaf = step.append(
        ReversalEntry(*step.head(contract), number, contract.currency, paid.total, step.actor.by, reason)
    )
    postings = ledger.reverse(ledger.settle(parties_of(contract), paid))
    move_money(step.writing, Movement(step.tenant, contract, "reverse", number, postings), leaf)
    step.note(contract, Operation.REVERSE, number, mark, reason)
    forget_settled(step.writing, step.tenant, contract)
    step.tell(
        *(contract, EventType.CONTRACT_REVERSED, number),
        settlement=number,
        total=in_units(paid.total),
        currency=contract.currency,
        reason=reason,
        by=step.actor.by,
    )
    return contract


class FollowUsage(NamedTuple):
    """A contract that is paid by tokens follows what is known of them: it is paid, waits on, or is taken back."""

    actor: Actor
    contract_id: str

    def __call__(self, writing: Writing) -> Contract | None:
        """Do what follows, if anything does; None where there is no such contract: a run may name whatever it likes."""
        step = _Step(writing, self.actor)
        try:
            contract = step.load(self.contract_id)
        except NotFound:
            return None
        after = _followed(step, contract)
        if after != contract:
            step.save(after)
        return after


def _followed(step: _Step, contract: Contract) -> Contract:
    terms = terms_of(contract)
    if not terms.prices_tokens or contract.state not in (ContractState.SETTLED, ContractState.VERIFICATION_PENDING):
        return contract
    usage = step.usage(contract)
    waits = why_usage_waits(usage, terms)
    if contract.state is ContractState.SETTLED:
        if not waits and _counted(step.bill_of(contract).usage) == _counted(usage):
            return contract
        contract = _taken_back(step, contract, BY_USAGE, waits or "its tokens are verified, and differ")
    try:
        return _follows(step, contract, waits)
    except WrongState as problem:
        return lifecycle.held(contract, str(problem))


def _counted(usage: Sequence[TokenUse]) -> list[tuple[Any, ...]]:
    """What of usage is billed by; one more look that found the same changes nothing."""
    return [(one.run_id, one.tokens, one.cost) for one in usage]


def _follows(step: _Step, contract: Contract, waits: str) -> Contract:
    """What becomes of a contract that is held, by what its tokens wait for; raises WrongState where a person must."""
    judgement, work = _judged(step, contract)
    assert judgement.result is not None  # noqa: S101 - just looked
    by_usage = judgement.version > contract.version or _taken_back_by_usage(step, contract)
    if _why_asked(contract, judgement.result, work.criteria) or not by_usage:
        # Something else holds it, and a person looks at that.
        return contract
    if waits:
        return lifecycle.held(contract, waits)
    _refuse_paid_run(step, contract, judgement.result)
    if terms_of(contract).settle is SettleWhen.ON_REQUEST:
        return _verified(step, contract, judgement.result)
    owed = _owed(step, contract, judgement.result)
    contract, version = _verified(step, contract, judgement.result), _renewed(step, contract, judgement).version
    return _paid(step, contract, version, owed)


class Dispute(NamedTuple):
    """Somebody objects to how a contract was judged or paid."""

    request: Request
    contract_id: str
    reason: str

    def __call__(self, writing: Writing) -> Answer:
        """Freeze it; a second time changes nothing."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        mark = fingerprint("dispute", step.actor.by, self.reason)
        try:
            contract = lifecycle.disputed(contract, step.now, terms_of(contract))
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.DISPUTE, contract.disputes, mark, problem)
        step.append(DisputeEntry(*step.head(contract), step.actor.by, self.reason))
        step.save(contract)
        step.note(contract, Operation.DISPUTE, contract.disputes, mark, self.reason)
        step.tell(contract, EventType.CONTRACT_DISPUTED, contract.disputes, reason=self.reason, by=step.actor.by)
        return step.standing(contract)


class Resolve(NamedTuple):
    """How a dispute ends."""

    request: Request
    contract_id: str
    decision: Decision
    reason: str

    def __call__(self, writing: Writing) -> Answer:
        """Let it stand, take it back, or call it off; a second time changes nothing."""
        return _answered(writing, self.request, self._act)

    def _act(self, step: _Step) -> Standing:
        contract = step.load(self.contract_id)
        mark = fingerprint("resolve", str(self.decision), self.reason)
        try:
            contract = lifecycle.upheld(contract)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.RESOLVE, contract.disputes, mark, problem)
        if self.decision is Decision.REVERSE and contract.escrow is not Escrow.PAID:
            raise WrongState("nothing_paid", f"nothing was paid on contract {contract.id} yet; uphold it or void it")
        step.append(ResolutionEntry(*step.head(contract), str(self.decision), step.actor.by, self.reason))
        step.note(contract, Operation.RESOLVE, contract.disputes, mark, self.reason)
        match self.decision:
            case Decision.UPHOLD:
                # Its tokens may have changed while nothing could move.
                contract = _followed(step, contract)
            case Decision.REVERSE:
                contract = _taken_back(step, contract, mark, self.reason)
            case Decision.VOID:
                if contract.escrow is Escrow.PAID:
                    contract = _taken_back(step, contract, mark, self.reason)
                contract = _called_off(step, contract, mark, self.reason)
        step.tell(
            *(contract, EventType.CONTRACT_RESOLVED, contract.disputes),
            decision=str(self.decision),
            reason=self.reason,
            by=step.actor.by,
        )
        step.save(contract)
        return step.standing(contract)


class Expire(NamedTuple):
    """Contracts whose deadline has passed: their escrow goes back."""

    by: str
    limit: int = 100

    def __call__(self, writing: Writing) -> int:
        """Those that are due, the earliest first; answers how many."""
        return sum(self._expired(writing, tenant, contract_id) for tenant, contract_id in self._due(writing))

    def _due(self, writing: Writing) -> Iterator[tuple[str, str]]:
        table, left = tables.contracts, self.limit
        for state in (ContractState.AWARDED, ContractState.EXECUTING):
            query = (
                select(table.c.tenant, table.c.id)
                .where(table.c.state == str(state), table.c.expires_at < writing.now.micros)
                .order_by(table.c.expires_at)
                .limit(left)
            )
            rows = writing.read(query)
            left -= len(rows)
            yield from ((row.tenant, row.id) for row in rows)

    def _expired(self, writing: Writing, tenant: str, contract_id: str) -> bool:
        step = _Step(writing, Actor(Scope(tenant), self.by))
        try:
            contract = lifecycle.expired(step.load(contract_id), step.now)
        except WrongState:
            # A caller of the same group was quicker.
            return False
        _give_back(step, contract, "expire", "the deadline passed")
        step.note(contract, Operation.EXPIRE, 0, fingerprint("expire"))
        step.tell(contract, EventType.CONTRACT_EXPIRED)
        step.save(contract)
        return True


def new_salt(entropy: Callable[[int], bytes]) -> bytes:
    """Randomness for one commitment."""
    return entropy(SALT_BYTES)
