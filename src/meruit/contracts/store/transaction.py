"""One contract inside a write transaction: load, save, log, emit events, and answer repeated requests."""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import bindparam, select, update

from meruit.contracts.lifecycle import Operation
from meruit.contracts.payment_decision import deciding_judges
from meruit.contracts.store.read import FIND, ContractJudgement, ContractSnapshot, contract_from_rows, row_of, terms_of
from meruit.contracts.token_terms import token_use
from meruit.errors import NotFound, RecordTampered, WrongState
from meruit.judges.records import check_calibrations, select_calibrations, standings_of
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import Scope
from meruit.model.contract import Contract
from meruit.model.events import EventType
from meruit.model.money import Bill, ContractTokenUse, JudgeStanding
from meruit.model.time import from_micros
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import ERASED, LATEST_RESULTS, LatestResult, result_from
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction
from meruit.usage.records import find_in_transaction

_CHANGING = (
    *(
        "state",
        "escrow",
        "input_read_at",
        "started_at",
        "completed_at",
        "settled_at",
        "outcome_id",
        "completion",
        "evidence",
    ),
    *("settlement", "settlements", "version", "total_micros", "disputed_from", "disputes", "hold_reason"),
)
_UPDATE = (
    update(tables.contracts)
    .where(tables.contracts.c.tenant == bindparam("of_tenant"), tables.contracts.c.id == bindparam("of_id"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)


CONTRACTS = Rows[Contract]("contract")
BILLS = Rows[Bill]("bill")
_FINGERPRINTS = Rows[str]("contract_transition")
"""Of the request that made each transition."""


class Actor(msgspec.Struct, frozen=True):
    """Who requests a transition."""

    scope: Scope
    by: str
    """The public half of a key, or `command line`."""

    @property
    def tenant(self) -> str:
        """The tenant of the contracts."""
        return self.scope.tenant


class ContractRequest(msgspec.Struct, frozen=True):
    """The actor of a request, its idempotency key, and how its reply is rendered."""

    actor: Actor
    idempotency_key: str | None = None
    """Key of the HTTP request; the outcome remembers it, so that an erasure finds the stored reply."""


def fingerprint(*parts: str) -> str:
    """A fingerprint that is equal for equal requests."""
    return sha256("\0".join(parts).encode()).hexdigest()


BY_USAGE = fingerprint("usage")
"""The fingerprint of a reversal because of tokens that are no longer verified."""


def new_salt(entropy: Callable[[int], bytes]) -> bytes:
    """A random salt for one commitment."""
    return entropy(SALT_BYTES)


class ContractTransaction(msgspec.Struct, frozen=True):
    """One contract inside a write transaction."""

    writing: WriteTransaction
    actor: Actor

    @property
    def tenant(self) -> str:
        """The tenant of the contracts."""
        return self.actor.tenant

    @property
    def now(self) -> datetime:
        """The time of the transaction."""
        return from_micros(self.writing.now.micros)

    def load(self, contract_id: str) -> Contract:
        """The contract, with changes by earlier requests of the same group; raises NotFound."""
        known = CONTRACTS.get(self.writing, self.tenant, contract_id)
        scope = self.actor.scope
        if known is not None:
            if scope.only_own and known.agent_id != scope.agent_id:
                raise NotFound(f"no contract {contract_id!r}")
            return known
        return contract_from_rows(self.writing.ask(FIND, self.tenant, contract_id), scope, contract_id)

    def save(self, contract: Contract) -> None:
        """Write the contract."""
        row = row_of(contract)
        CONTRACTS.put(self.writing, contract, self.tenant, contract.id)
        self.writing.change(
            _UPDATE, of_tenant=self.tenant, of_id=contract.id, **{f"new_{name}": row[name] for name in _CHANGING}
        )

    def load_snapshot(self, contract: Contract) -> ContractSnapshot:
        """The contract with its verdict and bill."""
        judgement = None if contract.outcome_id is None else self.judgement(contract.outcome_id)
        return ContractSnapshot(
            contract=contract, judgement=judgement, bill=self.bill_of(contract) if contract.settlement else None
        )

    def judgement(self, outcome_id: str) -> ContractJudgement:
        """The latest verdict on an outcome; without a result where it was erased. Raises RecordTampered."""
        known = LATEST_RESULTS.get(self.writing, self.tenant, outcome_id)
        if known is None:
            table = tables.verdicts
            query = (
                select(table.c.version, table.c.result)
                .where(table.c.tenant == self.tenant, table.c.outcome_id == outcome_id)
                .order_by(table.c.version.desc())
                .limit(1)
            )
            row = next(iter(self.writing.read(query)), None)
            if row is None:
                raise RecordTampered(f"the verdict on outcome {outcome_id} is gone")
            known = LatestResult(row.version, row.result)
        erased = ERASED.has(self.writing, self.tenant, outcome_id)
        try:
            return ContractJudgement(known.version, None if erased else result_from(known.result))
        except msgspec.DecodeError:
            raise RecordTampered(f"the result of outcome {outcome_id} cannot be read") from None

    def bill_of(self, contract: Contract) -> Bill:
        """The bill of the live settlement; raises RecordTampered where it is gone or cannot be read."""
        known = BILLS.get(self.writing, self.tenant, contract.id, contract.settlement)
        if known is not None:
            return known
        table = tables.settlements
        query = select(table.c.bill).where(
            table.c.tenant == self.tenant,
            table.c.contract_id == contract.id,
            table.c.number == contract.settlement,
        )
        rows = self.writing.read(query)
        try:
            return Bill.from_json(rows[0].bill)
        except (IndexError, msgspec.DecodeError):
            raise RecordTampered(f"the bill of contract {contract.id} cannot be read") from None

    def usage(self, contract: Contract) -> tuple[ContractTokenUse, ...]:
        """The tokens of the contract's runs as known now; empty where the terms do not price tokens."""
        if not terms_of(contract).prices_tokens:
            return ()
        return tuple(map(token_use, find_in_transaction(self.writing, self.tenant, contract.id)))

    def judges(self, contract: Contract, result: VerificationResult | None) -> tuple[JudgeStanding, ...]:
        """How well the judges that decided are known; empty where the terms do not ask for calibrated ones.

        Raises RecordTampered where the log does not commit to that.
        """
        if result is None or terms_of(contract).labels_asked_for is None:
            return ()
        judges = deciding_judges(result)
        rows = self.writing.read(select_calibrations(self.tenant, [version for _, version in judges.values()]))
        check_calibrations(self.writing, self.tenant, rows)
        return standings_of(rows, judges.values())

    def record_operation(
        self, contract: Contract, operation: Operation, number: int, mark: str, reason: str = ""
    ) -> None:
        """Record an operation, so that a repeated request can be answered."""
        _FINGERPRINTS.put(self.writing, mark, self.tenant, contract.id, str(operation), number)
        self.writing.insert(
            tables.contract_transitions,
            tenant=self.tenant,
            contract_id=contract.id,
            operation=str(operation),
            number=number,
            fingerprint=mark,
            at=self.writing.now.micros,
            actor=self.actor.by,
            reason=reason,
        )

    def has_operation(self, contract: Contract, operation: Operation, number: int, mark: str) -> bool:
        """Whether exactly this operation was requested before, and done."""
        known = _FINGERPRINTS.get(self.writing, self.tenant, contract.id, str(operation), number)
        if known is None:
            table = tables.contract_transitions
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

    def entry_header(self, contract: Contract) -> tuple[str, str, str, str, int]:
        """The fields with which every log entry of the contract starts."""
        number = self.writing.next_in_contract(self.tenant, contract.id)
        return (self.writing.now.written, self.tenant, contract.outcome_id or "", contract.id, number)

    def append(self, entry: Any) -> int:
        """Append an entry to the log; returns its index."""
        return self.writing.append(entry, self.tenant, entry.contract, entry.contract_seq)

    def emit_event(self, contract: Contract, kind: EventType, number: int = 0, **more: Any) -> None:
        """Emit an event, delivered once the transaction is durable."""
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
    ) -> ContractSnapshot:
        """Return the contract where the same operation was done before; otherwise raise the problem."""
        if self.has_operation(contract, operation, number, mark):
            return self.load_snapshot(contract)
        raise problem
