"""Compare what a payment reads with the audit log, before money moves: a changed row pays nothing."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Self

import msgspec
from sqlalchemy import Connection, select

from meruit.contracts.logged import LoggedContract, differing_fields, is_logged_run, read_logged_contract
from meruit.contracts.store.read import FIND, contract_from_rows, terms_of
from meruit.contracts.store.transaction import ContractTransaction
from meruit.contracts.store.work import WorkRow, find_for_writing
from meruit.errors import NotFound, RecordTampered
from meruit.log.commitment import matches
from meruit.log.entries import NO_CRITERIA, AwardEntry, Entry, criteria_digest_of, read_entry
from meruit.model.access import Scope
from meruit.model.contract import Contract
from meruit.store import tables
from meruit.store.database import in_style
from meruit.store.log_guard import find_forged_leaf
from meruit.usage.records import find_tampered_run

_LEAF = "SELECT body FROM log_leaves WHERE seq = ? AND contract_id = ?"
_LEAVES = "SELECT seq, body FROM log_leaves WHERE tenant = ? AND contract_id = ? ORDER BY contract_seq"


class JudgedBy(msgspec.Struct, frozen=True):
    """What an output is judged by, as it was read before the transaction that records it; digests and parties."""

    work: str
    """It commits to the input."""
    terms: str
    criteria: str
    agent: str
    consumer: str

    @classmethod
    def of(cls, contract: Contract, work: WorkRow, criteria: str) -> Self:
        """What a verdict by these criteria rests on."""
        return cls(
            work=sha256(work.body).hexdigest(),
            terms=sha256(contract.terms).hexdigest(),
            criteria=criteria,
            agent=contract.agent_id,
            consumer=contract.consumer_id,
        )


def find_disagreement(connection: Connection, contract: Contract, work: WorkRow) -> str | None:
    """What the award does not commit to of the rows that an output is to be judged by; None where it does.

    The leaf itself is proven where the verdict is written: nothing is recorded that a forged leaf allowed.
    """
    row = connection.exec_driver_sql(in_style(_LEAF, connection), (contract.seq, contract.id)).first()
    award = None if row is None else read_entry(bytes(row[0]))
    if not isinstance(award, AwardEntry):
        return "award"
    criteria = NO_CRITERIA if work.criteria is None else criteria_digest_of(work.criteria)
    return ", ".join(_judging_differences(JudgedBy.of(contract, work, criteria), award)) or None


def require_untampered(step: ContractTransaction, contract: Contract) -> None:
    """Raise RecordTampered where a record that pays the contract is not what the log commits to."""
    found = find_tampering(step, contract)
    if found is not None:
        raise RecordTampered(f"contract {contract.id} is held: {found}")


def find_tampering(step: ContractTransaction, contract: Contract, judged_by: JudgedBy | None = None) -> str | None:
    """What contradicts the log of all that pays a contract; None where nothing does.

    `judged_by` is what a verdict of this transaction rests on, which the log does not hold yet. Where that is not what
    was agreed on, RecordTampered is raised: a verdict that is recorded could be paid once the rows are restored.
    """
    if contract.seq >= step.writing.log_size:
        # It was awarded in this transaction, so nothing of it is in the database.
        return None
    leaves = [(int(seq), bytes(body)) for seq, body in step.writing.fetch(_LEAVES, step.tenant, contract.id)]
    forged = find_forged_leaf(step.writing, leaves)
    entries = [] if forged is not None else _read_entries(leaves)
    changed = f"entry {forged} of the audit log was changed" if forged is not None else _find_gap(contract.id, entries)
    if changed is not None:
        if judged_by is not None:
            raise RecordTampered(f"contract {contract.id}: {changed}")
        return changed
    logged = read_logged_contract(entries)
    if judged_by is not None:
        _require_agreed(step, contract, logged, judged_by)
    # A name may be found twice: in the row, and in what the output was judged by.
    differ = [*dict.fromkeys(_differences(step, contract, logged, judged_by))]
    return f"not what the audit log commits to: {', '.join(differ)}" if differ else None


def _require_agreed(step: ContractTransaction, contract: Contract, logged: LoggedContract, judged_by: JudgedBy) -> None:
    """Raise RecordTampered where the output was judged by what was not agreed on, or for another contract."""
    differ = {*_row_differences(step, contract, logged)}
    if logged.award is not None:
        differ |= {*_judging_differences(judged_by, logged.award)}
    if differ:
        raise RecordTampered(
            f"contract {contract.id} is not what the audit log commits to: {', '.join(sorted(differ))}"
        )


def _read_entries(leaves: Sequence[tuple[int, bytes]]) -> list[Entry]:
    """Entries of leaves that are in the log, so that each was written by us."""
    return [read_entry(body) for _, body in leaves]


def _find_gap(contract_id: str, entries: Sequence[Entry]) -> str | None:
    """The first entry that is missing; how many there are is compared where the next one is numbered."""
    for number, entry in enumerate(entries, 1):
        if (getattr(entry, "contract", ""), getattr(entry, "contract_seq", 0)) != (contract_id, number):
            return f"entry {number} of the contract is missing in the audit log"
    return None


def _differences(
    step: ContractTransaction, contract: Contract, logged: LoggedContract, judged_by: JudgedBy | None
) -> Iterator[str]:
    yield from _row_differences(step, contract, logged)
    yield from _work_differences(step, contract, logged)
    if judged_by is None:
        yield from _input_differences(step, contract, logged)
    yield from _verdict_differences(step, contract, logged)
    yield from _bill_differences(step, logged)
    yield from _usage_differences(step, contract)


def _row_differences(step: ContractTransaction, contract: Contract, logged: LoggedContract) -> Iterator[str]:
    recorded = contract_from_rows(step.writing.ask(FIND, step.tenant, contract.id), Scope(step.tenant), contract.id)
    fixed = ("work_id", "agent_id", "consumer_id", "currency", "hold_micros", "terms")
    yield from differing_fields(recorded, logged)
    # What this transaction changed may differ; what never changes may not.
    yield from (name for name in fixed if getattr(recorded, name) != getattr(contract, name))


def _judging_differences(judged_by: JudgedBy, award: AwardEntry) -> Iterator[str]:
    """Rows that were changed only while the output was judged look right again by now."""
    agreed = JudgedBy(
        work=award.work_digest,
        terms=award.terms,
        criteria=award.criteria or NO_CRITERIA,
        agent=award.agent,
        consumer=award.consumer,
    )
    yield from (name for name in JudgedBy.__struct_fields__ if getattr(judged_by, name) != getattr(agreed, name))


def _input_differences(step: ContractTransaction, contract: Contract, logged: LoggedContract) -> Iterator[str]:
    """Before there is an output, an agent whose input was damaged could not hand one in."""
    if logged.outcome:
        return
    works, blobs = tables.works, tables.blobs
    query = (
        select(blobs.c.address, blobs.c.content)
        .join(works, (works.c.tenant == blobs.c.tenant) & (works.c.input_address == blobs.c.address))
        .where(works.c.tenant == step.tenant, works.c.id == contract.work_id)
    )
    row = next(iter(step.writing.read(query)), None)
    # A large piece is a file, which no writer of the database can change.
    if row is None or (row.content is not None and sha256(bytes(row.content)).hexdigest() != row.address):
        yield "input"


def _work_differences(step: ContractTransaction, contract: Contract, logged: LoggedContract) -> Iterator[str]:
    award = logged.award
    if award is None:
        return
    try:
        work = find_for_writing(step.writing, step.tenant, contract.work_id)
    except (NotFound, RecordTampered):
        yield "work"
        return
    if sha256(work.body).hexdigest() != award.work_digest or (work.criteria_digest or "") != award.criteria:
        yield "work"
    if work.criteria is not None and criteria_digest_of(work.criteria) != award.criteria:
        yield "criteria"
    if not work.has_agreed_input:
        yield "input"


def _verdict_differences(step: ContractTransaction, contract: Contract, logged: LoggedContract) -> Iterator[str]:
    entry = logged.verdict
    if entry is None:
        return
    table, outcomes = tables.verdicts, tables.outcomes
    query = (
        select(table.c.version, table.c.result, table.c.salt, outcomes.c.metadata_salt)
        .join(outcomes, (outcomes.c.tenant == table.c.tenant) & (outcomes.c.id == table.c.outcome_id))
        .where(table.c.tenant == step.tenant, table.c.outcome_id == entry.outcome)
        .order_by(table.c.version.desc())
        .limit(1)
    )
    row = next(iter(step.writing.read(query)), None)
    if row is None or row.version != entry.version:
        yield "verdict"
        return
    if row.result is not None and not matches(entry.result, bytes(row.salt or b""), bytes(row.result)):
        yield "result"
    if not is_logged_run(contract.evidence, logged, row.metadata_salt):
        yield "run"


def _bill_differences(step: ContractTransaction, logged: LoggedContract) -> Iterator[str]:
    live = logged.settlement
    if live is None:
        return
    table = tables.settlements
    rows = step.writing.read(
        select(table.c.bill).where(
            table.c.tenant == step.tenant, table.c.contract_id == live.contract, table.c.number == live.number
        )
    )
    if not rows or sha256(bytes(rows[0].bill)).hexdigest() != live.bill:
        yield "bill"


def _usage_differences(step: ContractTransaction, contract: Contract) -> Iterator[str]:
    try:
        prices_tokens = terms_of(contract).prices_tokens
    except (ValueError, msgspec.DecodeError):
        # The terms differ, which is a problem by itself.
        return
    if not prices_tokens:
        return
    run = find_tampered_run(step.writing, step.tenant, contract.id)
    if run is not None:
        yield f"usage of run {run}"
