"""Taking an outcome out of a store: as a bundle that a stranger can check, or as the receipt of one verdict."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, func, select

from meruit.audit.bundle import (
    FORMAT,
    Annotations,
    Bundle,
    BundleManifest,
    CaseFile,
    CaseReceipt,
    ConsistencyProof,
    ContractFile,
    LabelProof,
    LabelsFile,
    LoggedEntry,
    Receipt,
    RunProof,
    SaltedContent,
    Salts,
    UsageFile,
    VersionsFile,
    pack,
    statement_about,
)
from meruit.audit.case import verdict_of_case, verdict_of_version
from meruit.audit.verify.receipt import CASE_RECEIPT_FORMAT, RECEIPT_FORMAT
from meruit.errors import NotFound, StoreError, StoreUnavailable
from meruit.evaluations.reader import KeptCase, find_case, load_case
from meruit.log.entries import (
    OUR_CONTRACT,
    PARTS,
    SegmentEntry,
    UsageEntry,
    VerdictEntry,
    VersionSegmentEntry,
    read_entry,
)
from meruit.log.merkle import Subtree, consistency_proof, inclusion_proof
from meruit.log.note import SigningKey
from meruit.log.segment import case_bytes, case_proof, version_bytes
from meruit.log.statement import envelope
from meruit.model.access import Scope
from meruit.model.money import Bill
from meruit.model.outcome import VerdictVersion
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import result_from
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.checkpoint import checkpoint, checkpoint_signed_by
from meruit.store.log_tiles import Tiles
from meruit.store.store import Store
from meruit.usage.records import contract_of, load_commitment

MAX_TRIES = 20
"""How often a checkpoint is asked for, while others keep writing to the same contract."""

Sleep = Callable[[float], None]
T = TypeVar("T")


class _SignedLog(msgspec.Struct, frozen=True):
    """A checkpoint that the store's key signed, and the hashes of the log."""

    size: int
    note: str
    subtree: Subtree


def export(store: Store, scope: Scope, outcome_id: str, *, sleep: Sleep = time.sleep) -> bytes:
    """A bundle of the outcome, all versions of its verdict included; raises NotFound.

    Waits up to a second where the newest entries are not signed for yet.
    """
    if scope.only_own:
        # An agent is never shown what it was judged by.
        raise NotFound(f"no outcome {outcome_id!r}")

    if _is_case(store, scope.tenant, outcome_id):
        return pack(_when_signed(store, *_case_reader(store, scope.tenant, outcome_id), sleep))

    def size_to_cover(connection: Connection) -> int:
        contract_id = outcomes.summary(connection, scope, outcome_id).contract_id
        last = audit.last_in_contract(connection, scope.tenant, contract_id)
        newest = [leaf.position for leaf in audit.window(connection, scope.tenant, contract_id, last, last)]
        of_runs = [leaves[-1].position for leaves in _runs_paid(connection, scope.tenant, contract_id).values()]
        verdicts = [one.leaf for one in _versions(connection, scope.tenant, outcome_id)]
        return max(*newest, *of_runs, *verdicts, _key_leaf(connection, store)) + 1

    return pack(
        _when_signed(
            store, size_to_cover, lambda found, signed: _bundle(store, scope, outcome_id, found, signed), sleep
        )
    )


def receipt(
    store: Store, scope: Scope, outcome_id: str, version: int | None = None, *, sleep: Sleep = time.sleep
) -> Receipt | CaseReceipt:
    """The proof that a verdict is in the log, the latest unless another is asked for; raises NotFound."""
    if not scope.only_own and _is_case(store, scope.tenant, outcome_id):
        return _case_receipt(store, scope.tenant, outcome_id, version, sleep)

    def find_verdict(connection: Connection) -> VerdictVersion:
        number = outcomes.summary(connection, scope, outcome_id).version if version is None else version
        return outcomes.version(connection, scope, outcome_id, number)

    def build_receipt(connection: Connection, signed: _SignedLog) -> Receipt | CaseReceipt:
        verdict = find_verdict(connection)
        logged = _prove_entry(audit.leaf(connection, verdict.leaf), signed)
        proof = _prove_versions(connection, scope.tenant, outcome_id).get(verdict.version)
        if proof is not None:
            return _receipt_in_segment(store, outcome_id, proof.file, logged, signed)
        return Receipt(
            format=RECEIPT_FORMAT,
            outcome=outcome_id,
            version=verdict.version,
            index=logged.index,
            entry=logged.body,
            proof=logged.proof,
            checkpoint=signed.note,
            vkey=store.signer.vkey,
        )

    return _when_signed(store, lambda connection: find_verdict(connection).leaf + 1, build_receipt, sleep)


def _when_signed(
    store: Store,
    size_needed: Callable[[Connection], int],
    read: Callable[[Connection, _SignedLog], T],
    sleep: Sleep,
) -> T:
    """Read one state of the store, once a checkpoint covers what is needed; at most one is signed a second."""
    store.require_admitted()
    for _ in range(MAX_TRIES):
        with store.database.reading() as connection:
            size = size_needed(connection)
            covering = audit.best_witnessed(connection, size)
            if covering is not None:
                return read(connection, _resign(store.signer, covering, Tiles(connection)))
        checkpoint(store, size, sleep)
    raise StoreUnavailable("the contract is being written to without a pause; try again later")


def _resign(signer: SigningKey, found: audit.SignedCheckpoint, tiles: Tiles) -> _SignedLog:
    """The checkpoint by this store's key, with hashes that are read once."""
    subtree = cache(tiles.subtree)
    signed = checkpoint_signed_by(signer, found, subtree)
    return _SignedLog(size=signed.size, note=signed.note, subtree=subtree)


def _bundle(store: Store, scope: Scope, outcome_id: str, connection: Connection, signed: _SignedLog) -> Bundle:
    row = _row(connection, scope.tenant, outcome_id)
    contract_id, last = row.contract_id, audit.last_in_contract(connection, scope.tenant, row.contract_id)
    begin = 1 if OUR_CONTRACT.fullmatch(contract_id) else _first(connection, row)
    window = audit.window(connection, scope.tenant, contract_id, begin, last)
    entries = [read_entry(leaf.body) for leaf in window]
    in_segments = _prove_versions(connection, scope.tenant, outcome_id)
    verdicts = [one for one in entries if isinstance(one, VerdictEntry) and one.outcome == outcome_id]
    verdicts += [one.verdict for one in in_segments.values()]
    verdicts.sort(key=lambda one: one.version)
    criteria = {verdict.criteria: verdict.criteria_index for verdict in verdicts}
    others = [
        audit.leaf(connection, index) for index in sorted({*criteria.values(), *_key_leaves(connection, signed.size)})
    ]
    begun = _first_checkpoint(connection, verdicts[0].criteria_index, store)
    work = outcomes.evidence(connection, scope, outcome_id, store.blobs)._asdict()
    work = {part: content for part, content in work.items() if content is not None}
    results = _results(connection, scope.tenant, outcome_id)
    latest = verdicts[-1]
    paid = _runs_paid(connection, scope.tenant, contract_id)
    about = Annotations(
        outcome=outcome_id,
        version=latest.version,
        contract=contract_id,
        contract_seq=last,
        log_size=signed.size,
        first_log_size=begun.size,
        usage={run: len(leaves) for run, leaves in paid.items()},
    )
    result = result_from(results[latest.version][1]) if latest.version in results else None
    return Bundle(
        manifest=BundleManifest(FORMAT, outcome_id, [verdict.version for verdict in verdicts], []),
        key=f"{store.signer.vkey}\n",
        checkpoint=signed.note,
        first_checkpoint=begun.note,
        consistency=ConsistencyProof(consistency_proof(begun.size, signed.size, signed.subtree)),
        entries=sorted(
            (
                _prove_entry(leaf, signed)
                for leaf in (
                    *(*window, *others, *chain.from_iterable(paid.values())),
                    *(one.leaf for one in in_segments.values()),
                )
            ),
            key=lambda entry: entry.index,
        ),
        salts=Salts(
            _hex(row.input_salt),
            _hex(row.output_salt),
            _hex(row.metadata_salt),
            {str(version): salt.hex() for version, (salt, _) in results.items()},
        ),
        criteria={digest: outcomes.criteria_body(connection, scope.tenant, digest) for digest in criteria},
        work=work,
        results={version: result for version, (_, result) in results.items()},
        statement=envelope(statement_about(latest, about, work, result), store.signer),
        contract=_contract(connection, scope.tenant, contract_id, outcome_id, has_input=row.input_address is not None),
        usage=UsageFile({run: _proof(connection, scope.tenant, run, leaves) for run, leaves in paid.items()})
        if paid
        else None,
        versions=VersionsFile({str(one.leaf.position): one.file for one in in_segments.values()})
        if in_segments
        else None,
    )


@dataclass(frozen=True, slots=True)
class _VersionProof:
    """A version of the verdict that a segment holds."""

    leaf: audit.LogLeaf
    verdict: VerdictEntry
    """As if it had an entry of its own."""
    file: CaseFile


def _prove_versions(connection: Connection, tenant: str, outcome_id: str) -> dict[int, _VersionProof]:
    """The versions that segments hold, each with its path in the segment."""
    segments, found = outcomes.SegmentReader(connection, tenant), {}
    for row in _versions(connection, tenant, outcome_id):
        if row.place is None:
            continue
        leaf = audit.leaf(connection, row.leaf)
        segment = read_entry(leaf.body)
        if not isinstance(segment, VersionSegmentEntry):
            raise StoreError(f"the log has no segment at {row.leaf}; restore the database from a copy")
        entries = [one.entry() for one in segments.segment(row.leaf).contents()]
        written = [version_bytes(one) for one in entries]
        found[int(row.version)] = _VersionProof(
            leaf=leaf,
            verdict=verdict_of_version(entries[row.place], segment, leaf.position),
            file=CaseFile(written[row.place], row.place, case_proof(row.place, written)),
        )
    return found


def _receipt_in_segment(
    store: Store, outcome_id: str, held: CaseFile, logged: LoggedEntry, signed: _SignedLog
) -> CaseReceipt:
    return CaseReceipt(
        format=CASE_RECEIPT_FORMAT,
        outcome=outcome_id,
        case=held,
        index=logged.index,
        entry=logged.body,
        proof=logged.proof,
        checkpoint=signed.note,
        vkey=store.signer.vkey,
    )


def _is_case(store: Store, tenant: str, outcome_id: str) -> bool:
    """Whether the outcome is a case of an evaluation."""
    with store.database.reading() as connection:
        return find_case(connection, tenant, outcome_id) is not None


def _case_reader(
    store: Store, tenant: str, outcome_id: str
) -> tuple[Callable[[Connection], int], Callable[[Connection, _SignedLog], Bundle]]:
    """How far the log must be signed for a bundle of a case, and how that is read then."""

    def size_to_cover(connection: Connection) -> int:
        case = load_case(connection, store.blobs, tenant, outcome_id)
        last = audit.last_in_contract(connection, tenant, outcome_id)
        own = [leaf.position for leaf in audit.window(connection, tenant, outcome_id, 1, last)]
        labels = [int(row.leaf) for row in _labels(connection, tenant, case)]
        return max(case.leaf, *own, *labels, _key_leaf(connection, store)) + 1

    return size_to_cover, lambda found, signed: _case_bundle(store, tenant, outcome_id, found, signed)


def _case_bundle(store: Store, tenant: str, outcome_id: str, connection: Connection, signed: _SignedLog) -> Bundle:
    case = load_case(connection, store.blobs, tenant, outcome_id)
    segment_leaf = audit.leaf(connection, case.leaf)
    segment = read_entry(segment_leaf.body)
    if not isinstance(segment, SegmentEntry):
        raise StoreError(f"the log has no segment at {case.leaf}; restore the database from a copy")
    last = audit.last_in_contract(connection, tenant, outcome_id)
    own = audit.window(connection, tenant, outcome_id, 1, last)
    labels = _labels(connection, tenant, case)
    # What was labelled in a review is worth nothing without its draw, which came before.
    leaves = {leaf for row in labels for leaf in (row.leaf, row.review_leaf)}
    others = [
        audit.leaf(connection, index)
        for index in {segment.criteria_index, *leaves, *_key_leaves(connection, signed.size)}
    ]
    begun = _first_checkpoint(connection, segment.criteria_index, store)
    latest = verdict_of_case(case.content.entry(), segment, case.leaf)
    about = Annotations(
        outcome=outcome_id,
        version=latest.version,
        contract=outcome_id,
        contract_seq=last,
        log_size=signed.size,
        first_log_size=begun.size,
        labels=len(labels),
    )
    work = {part: bytes(getattr(case.content, part)) for part in PARTS if bytes(getattr(case.content, part))}
    result = bytes(case.content.result)
    salts = case.content.part_salts()
    return Bundle(
        manifest=BundleManifest(FORMAT, outcome_id, [latest.version], []),
        key=f"{store.signer.vkey}\n",
        checkpoint=signed.note,
        first_checkpoint=begun.note,
        consistency=ConsistencyProof(consistency_proof(begun.size, signed.size, signed.subtree)),
        entries=sorted(
            (_prove_entry(leaf, signed) for leaf in (*own, *others, segment_leaf)), key=lambda entry: entry.index
        ),
        salts=Salts(salts[0], salts[1], salts[2], {str(latest.version): salts[3]})
        if salts
        else Salts(None, None, None, {}),
        criteria={segment.criteria: outcomes.criteria_body(connection, tenant, segment.criteria)},
        work=work,
        results={latest.version: result} if result else {},
        statement=envelope(statement_about(latest, about, work, result_from(result) if result else None), store.signer),
        case=_prove_case(case),
        labels=LabelsFile({str(row.leaf): LabelProof(row.salt.hex(), row.choice, row.note_hash) for row in labels})
        if labels
        else None,
    )


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _labels(connection: Connection, tenant: str, case: KeptCase) -> Sequence[Any]:
    """All that people ever said of a case, in the order of the log."""
    entry = case.content.entry()
    reviews, draws, labels = tables.reviews, tables.review_draws, tables.review_labels
    query = (
        select(labels.c.leaf, labels.c.salt, labels.c.choice, labels.c.note_hash, reviews.c.leaf.label("review_leaf"))
        .join(
            draws,
            (draws.c.tenant == labels.c.tenant)
            & (draws.c.review_id == labels.c.review_id)
            & (draws.c.number == labels.c.number),
        )
        .join(reviews, (reviews.c.tenant == labels.c.tenant) & (reviews.c.id == labels.c.review_id))
        .where(labels.c.tenant == tenant, reviews.c.evaluation_id == case.evaluation_id)
        .where(draws.c.case_id == entry.case, draws.c.repeat == entry.repeat)
        .order_by(labels.c.leaf)
    )
    return connection.execute(query).all()


def _prove_case(case: KeptCase) -> CaseFile:
    return CaseFile(case_bytes(case.content.entry()), case.place, case_proof(case.place, case.entries))


def _case_receipt(store: Store, tenant: str, outcome_id: str, version: int | None, sleep: Sleep) -> CaseReceipt:
    if version not in (None, 1):
        raise NotFound(f"{outcome_id} is a case of an evaluation and has no version {version}")

    def build(connection: Connection, signed: _SignedLog) -> CaseReceipt:
        case = load_case(connection, store.blobs, tenant, outcome_id)
        logged = _prove_entry(audit.leaf(connection, case.leaf), signed)
        return _receipt_in_segment(store, outcome_id, _prove_case(case), logged, signed)

    def size_needed(connection: Connection) -> int:
        return load_case(connection, store.blobs, tenant, outcome_id).leaf + 1

    return _when_signed(store, size_needed, build, sleep)


def _runs_paid(connection: Connection, tenant: str, contract_id: str) -> dict[str, Sequence[audit.LogLeaf]]:
    """What the log says of each run whose tokens the contract paid for, at any time."""
    table = tables.settlements
    paid = connection.execute(
        select(table.c.bill).where(table.c.tenant == tenant, table.c.contract_id == contract_id)
    ).scalars()
    runs = sorted({use.run_id for one in paid for use in Bill.from_json(one).usage})
    contracts = {run: contract_of(run) for run in runs}
    return {
        run: audit.window(connection, tenant, name, 1, audit.last_in_contract(connection, tenant, name))
        for run, name in contracts.items()
    }


def _proof(connection: Connection, tenant: str, run_id: str, leaves: Sequence[audit.LogLeaf]) -> RunProof:
    """The run, and the observations of it that the log commits to so far."""
    commitment = load_commitment(connection, tenant, run_id)
    entries = [read_entry(leaf.body) for leaf in leaves]
    count = max(entry.attempts for entry in entries if isinstance(entry, UsageEntry))
    return RunProof(commitment.salt.hex(), commitment.run, commitment.observations[:count])


def _contract(
    connection: Connection, tenant: str, contract_id: str, outcome_id: str, *, has_input: bool
) -> ContractFile | None:
    """What the contract was paid by, and on what grounds; None where there was none."""
    of, works = tables.contracts, tables.works
    agreed = connection.execute(
        select(of.c.terms, works.c.body, works.c.input_salt)
        .join(works, (works.c.tenant == of.c.tenant) & (works.c.id == of.c.work_id))
        .where(of.c.tenant == tenant, of.c.id == contract_id)
    ).first()
    if agreed is None:
        return None
    checks, bills = tables.governance_checks, tables.settlements
    checked = connection.execute(
        select(checks).where(checks.c.tenant == tenant, checks.c.outcome_id == outcome_id, checks.c.body.is_not(None))
    )
    paid = connection.execute(select(bills).where(bills.c.tenant == tenant, bills.c.contract_id == contract_id))
    return ContractFile(
        terms=agreed.terms,
        governance={str(row.version): SaltedContent(row.salt.hex(), row.body) for row in checked},
        bills={str(row.number): row.bill for row in paid},
        work=agreed.body,
        # With the salt, an input could be guessed from its hash.
        input_salt=_hex(agreed.input_salt) if has_input else None,
    )


def _first_checkpoint(connection: Connection, criteria_index: int, store: Store) -> _SignedLog:
    """The first that was signed once the criteria were committed to."""
    found = audit.checkpoint_covering(connection, criteria_index + 1)
    if found is None:
        raise StoreError("the checkpoints of the audit log are gone; restore the database from a copy")
    return _resign(store.signer, found, Tiles(connection))


def _prove_entry(leaf: audit.LogLeaf, signed: _SignedLog) -> LoggedEntry:
    return LoggedEntry(leaf.position, leaf.body, inclusion_proof(leaf.position, signed.size, signed.subtree))


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _row(connection: Connection, tenant: str, outcome_id: str) -> Any:
    table = tables.outcomes
    return connection.execute(select(table).where(table.c.tenant == tenant, table.c.id == outcome_id)).one()


def _first(connection: Connection, row: Any) -> int:
    """The number in its contract of the outcome's first entry; of the entry before it, where a segment holds that."""
    table = tables.log_leaves
    own = connection.execute(select(table.c.contract_seq).where(table.c.seq == row.evidence_leaf)).scalar_one()
    if own is not None:
        return int(own)
    before = select(func.max(table.c.contract_seq)).where(
        table.c.tenant == row.tenant, table.c.contract_id == row.contract_id, table.c.seq < row.evidence_leaf
    )
    return int(connection.execute(before).scalar() or 1)


def _key_leaf(connection: Connection, store: Store) -> int:
    """Where the log admits the key; a store does so when it is opened."""
    table = tables.log_keys
    return int(connection.execute(select(table.c.seq).where(table.c.vkey == store.signer.vkey)).scalar_one())


def _key_leaves(connection: Connection, size: int) -> list[int]:
    """Where the first entries of the log, which are so many, admit keys: the whole chain."""
    table = tables.log_keys
    return [*connection.execute(select(table.c.seq).where(table.c.seq < size)).scalars()]


def _versions(
    connection: Connection, tenant: str, outcome_id: str
) -> Sequence[outcomes.VersionRow | outcomes.RunPlace]:
    """The versions of an outcome, oldest first."""
    table = tables.outcomes
    query = select(table.c.seq).where(table.c.tenant == tenant, table.c.id == outcome_id)
    seq = connection.execute(query).scalar_one()
    return outcomes.VersionReader(connection, tenant).of(outcome_id, seq)


def _results(connection: Connection, tenant: str, outcome_id: str) -> dict[int, tuple[bytes, bytes]]:
    """Salt and result of each version, those left out that were erased."""
    segments, found = outcomes.SegmentReader(connection, tenant), {}
    for row in _versions(connection, tenant, outcome_id):
        kept = segments.segment(row.leaf).content(row.place) if row.place is not None else row
        if kept.result is not None:
            found[row.version] = kept.salt or b"", kept.result
    return found


def _hex(salt: bytes | None) -> str | None:
    return None if salt is None else salt.hex()
