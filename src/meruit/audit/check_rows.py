"""Compare rows and evidence with the leaves that commit to them, a page of a table at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, case, func, select, true, tuple_

from meruit.contracts.logged import LoggedContract, differing_fields, is_logged_run, read_logged_contract
from meruit.contracts.postings import Parties, Posting
from meruit.contracts.records import contract_from
from meruit.contracts.replay import transfer_from_entry
from meruit.errors import MeruitError, StoreUnavailable
from meruit.evaluations.case_judge import CaseVerdict, latency_of
from meruit.evaluations.reader import differing_figures
from meruit.evaluations.segment import CaseContent, entries_of, unpack
from meruit.gate.records import commitment_content
from meruit.log.commitment import commitment_to, matches, matches_digest
from meruit.log.entries import (
    GOVERNANCE,
    PARTS,
    RESULT,
    AwardEntry,
    CalibrationEntry,
    CriteriaEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    GateEntry,
    GovernanceEntry,
    KeyEntry,
    LabelEntry,
    MoneyEntry,
    ReleaseEntry,
    ReversalEntry,
    ReviewEntry,
    SegmentEntry,
    SettlementEntry,
    UsageEntry,
    VerdictEntry,
    VersionSegmentEntry,
    VoteEntry,
    api_key_sequence,
    read_entry,
    run_sequence,
)
from meruit.log.segment import VersionEntry, segment_root, version_bytes
from meruit.model.contract import parse_stored_work
from meruit.model.decoding import decode_json
from meruit.model.usage import UsageCode
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import VersionReader, run_of
from meruit.outcomes.segment import open_versions
from meruit.review.label import ReviewTerms, draws_digest, label_content
from meruit.store import tables
from meruit.store.access.keys import differing_key_fields
from meruit.store.blobs import BlobStore
from meruit.usage.logged import RecordedUsage, find_usage_difference, has_progress_of
from meruit.usage.records import MAX_TOTAL_TOKENS, contract_of

PAGE = 512
"""Rows of one slice."""
SEGMENT_PAGE = 16
"""The same for segments, which have up to 512 cases each."""
DERIVED = "derived"
"""The code for kept figures that do not follow from the records that they are made from."""
Problem = tuple[str, str, str]
"""Code, place and message."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a comparison may read besides its row."""

    connection: Connection
    blobs: BlobStore
    size: int
    """Leaves that are checked."""
    readers: dict[str, VersionReader] = field(default_factory=dict)
    """Of versions, by tenant."""

    def versions(self, tenant: str) -> VersionReader:
        """What reads the versions of a tenant's outcomes."""
        if tenant not in self.readers:
            self.readers[tenant] = VersionReader(self.connection, tenant)
        return self.readers[tenant]


# Any, here and below: rows of SQLAlchemy, entries of the kind.
Comparison = Callable[[Reading, Any, Any], Iterator[str]]
"""The names of what differs."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """How the rows of one table are compared with the log."""

    table: Table
    compare: Comparison
    leaf: str | None = None
    """The column with the position of the leaf; None where the comparison finds its leaves itself."""
    kinds: tuple[type[Any], ...] = ()
    """Of the entry."""
    counts: bool = True
    """Whether there is one row for each entry of these kinds."""
    code: str = "row"
    rows_of: Callable[[Any], int] = lambda _entry: 1
    """How many rows an entry of these kinds has."""
    page: int = PAGE
    """How many rows are compared in one slice."""
    shared: str | None = None
    """The column that has a value where a row shares its entry with others: such rows are not counted."""

    def count_rows(self, entry: Entry | None) -> int:
        """How many rows of this table an entry has."""
        return self.rows_of(entry) if isinstance(entry, self.kinds) else 0

    def find_problem(self, reading: Reading, row: Any) -> Problem | None:
        """What is wrong with a row; None where it is what the log commits to."""
        where = f"{self.table.name} {_name_of(self.table, row)}"
        entry: Entry | None = None
        if self.leaf is not None:
            entry = parse_leaf(row.leaf_body)
            if not isinstance(entry, self.kinds):
                return (self.code, where, f"leaf {getattr(row, self.leaf)} does not commit to it")
        try:
            differ = [*self.compare(reading, row, entry)]
        except StoreUnavailable:
            raise
        # A changed row may name anything: a verdict that there is not, or an evaluation that is gone.
        except (MeruitError, msgspec.DecodeError, ValueError, LookupError) as problem:
            return (self.code, where, f"it cannot be read: {problem}")
        if not differ:
            return None
        if self.code == DERIVED:
            return (self.code, where, f"not what its records add up to: {', '.join(differ)}")
        by = "the log" if self.leaf is None else f"leaf {getattr(row, self.leaf)}"
        return (self.code, where, f"not what {by} commits to: {', '.join(differ)}")


class RowScan:
    """How far the rows of one table are compared."""

    def __init__(self, check: RowCheck) -> None:
        self.check = check
        self.count = 0
        """Rows that were compared."""
        self.alone = 0
        """Those of them that have an entry for themselves."""
        self.done = False
        self._after: tuple[Any, ...] | None = None
        """The key of the last row."""

    def read_page(self, connection: Connection, blobs: BlobStore, size: int) -> list[Problem]:
        """Compare the next page of rows; only those of the first `size` leaves."""
        table, leaves = self.check.table, tables.log_leaves
        keys = [*table.primary_key.columns]
        query = select(table)
        if self.check.leaf is not None:
            leaf = table.c[self.check.leaf]
            query = select(table, leaves.c.body.label("leaf_body")).outerjoin(leaves, leaves.c.seq == leaf)
        if self._after is not None:
            query = query.where(tuple_(*keys) > tuple_(*self._after))
        rows = connection.execute(query.order_by(*keys).limit(self.check.page)).all()
        reading = Reading(connection, blobs, size)
        found = [problem for row in rows if (problem := self._compare(reading, row)) is not None]
        if rows:
            self._after = tuple(getattr(rows[-1], column.name) for column in keys)
        self.done = len(rows) < self.check.page
        return found

    def _compare(self, reading: Reading, row: Any) -> Problem | None:
        if self.check.leaf is not None and getattr(row, self.check.leaf) >= reading.size:
            # It is newer than the check.
            return None
        self.count += 1
        self.alone += self.check.shared is None or getattr(row, self.check.shared) is None
        return self.check.find_problem(reading, row)


def parse_leaf(body: bytes | None) -> Entry | None:
    """The entry of a leaf; None where there is none, or where it cannot be read."""
    try:
        return None if body is None else read_entry(bytes(body))
    except msgspec.DecodeError:
        return None


def _name_of(table: Table, row: Any) -> str:
    return "/".join(str(getattr(row, column.name)) for column in table.primary_key.columns)


def _differing(**pairs: tuple[Any, Any]) -> Iterator[str]:
    return (name for name, (recorded, logged) in pairs.items() if recorded != logged)


def _compare_key(_: Reading, row: Any, entry: KeyEntry) -> Iterator[str]:
    return _differing(vkey=(row.vkey, entry.vkey))


def _compare_criteria(_: Reading, row: Any, entry: CriteriaEntry) -> Iterator[str]:
    digest = sha256(bytes(row.body)).hexdigest()
    return _differing(tenant=(row.tenant, entry.tenant), digest=(row.digest, entry.digest), body=(digest, entry.digest))


def _compare_evidence(reading: Reading, row: Any, entry: EvidenceEntry | VersionSegmentEntry) -> Iterator[str]:
    yield from _differing(tenant=(row.tenant, entry.tenant))
    if isinstance(entry, VersionSegmentEntry):
        yield from _differing(evidence=(entry.evidence, True))
        # What the log says of the evidence is compared with the segment.
        for part in PARTS:
            address = getattr(row, f"{part}_address")
            if address is not None and not _is_stored(reading, row.tenant, address):
                yield part
    else:
        yield from _compare_committed(reading, row, entry)
    yield from _compare_latest(reading, row)


def _compare_committed(reading: Reading, row: Any, entry: EvidenceEntry | VersionEntry) -> Iterator[str]:
    """The evidence of an outcome against the hashes in the log."""
    yield from _differing(id=(row.id, entry.outcome), contract_id=(row.contract_id, entry.contract))
    for part in PARTS:
        address, salt = getattr(row, f"{part}_address"), getattr(row, f"{part}_salt")
        if address is None or salt is None:
            # The hash stays, and says nothing.
            if not _is_erased(reading, row.tenant, entry, part):
                yield part
            continue
        # Whether the content is that of its address is checked with the blobs.
        if commitment_to(bytes(salt), address) != getattr(entry, part) or not _is_stored(reading, row.tenant, address):
            yield part


def _is_erased(
    reading: Reading,
    tenant: str,
    entry: EvidenceEntry | VerdictEntry | GovernanceEntry | VersionEntry,
    part: str,
) -> bool:
    """Whether the log says that a part of an outcome was erased: rows alone may say so of what is to be hidden."""
    entries = _sequence_entries(reading, tenant, entry.contract)
    return any(isinstance(one, ErasureEntry) and one.outcome == entry.outcome and part in one.parts for one in entries)


def _is_stored(reading: Reading, tenant: str, address: str) -> bool:
    blobs = tables.blobs
    query = select(blobs.c.size).where(blobs.c.tenant == tenant, blobs.c.address == address)
    return reading.connection.execute(query).first() is not None


def _compare_latest(reading: Reading, row: Any) -> Iterator[str]:
    """What an outcome says of its latest version, against that version."""
    reader = reading.versions(row.tenant)
    found = reader.newest(row.id, row.seq)
    if found is None:
        yield "version"
        return
    latest = reader.complete(found)
    if reader.numbers(row.id, row.seq) != [*range(1, latest.version + 1)]:
        # A row and a run, or two runs, may say the same twice: nothing else would name that.
        yield "versions"
    yield from _differing(
        version=(row.version, latest.version),
        verdict=(row.verdict, latest.verdict),
        success=(row.success, latest.success),
        score=(row.score, latest.score),
        criteria_digest=(row.criteria_digest, latest.criteria_digest),
    )


def _compare_verdict(reading: Reading, row: Any, entry: VerdictEntry | VersionSegmentEntry) -> Iterator[str]:
    if isinstance(entry, VersionSegmentEntry):
        held = None if row.place is None else reading.versions(row.tenant).segments.segment(row.leaf).content(row.place)
        yield from _differing(
            tenant=(row.tenant, entry.tenant),
            criteria_digest=(row.criteria_digest, entry.criteria),
            reason=(row.reason, entry.reason),
            place=(held is None, False),
        )
        if held is not None:
            yield from _differing(
                outcome_id=(row.outcome_id, held.outcome),
                version=(row.version, held.version),
                verdict=(row.verdict, held.verdict),
                success=(bool(row.success), held.success),
                score=(row.score, float(Fraction(held.score))),
                salt=(row.salt, None),
                result=(row.result, None),
            )
        return
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        criteria_digest=(row.criteria_digest, entry.criteria),
        verdict=(row.verdict, entry.verdict),
        success=(bool(row.success), entry.success),
        reason=(row.reason, entry.reason),
        place=(row.place, None),
    )
    if row.result is None or row.salt is None:
        if not _is_erased(reading, row.tenant, entry, RESULT):
            yield "result"
    elif not _is_committed(entry.result, row.salt, row.result):
        yield "result"


def _compare_versions(reading: Reading, row: Any, entry: VersionSegmentEntry) -> Iterator[str]:
    """A segment of versions against its leaf, and whether each of its versions is found."""
    yield from _differing(tenant=(row.tenant, entry.tenant), versions=(row.versions, entry.versions))
    contents = open_versions(reading.blobs.content(reading.connection, row.tenant, row.address)).contents()
    entries = [one.entry() for one in contents]
    if segment_root([version_bytes(one) for one in entries]).hex() != entry.root:
        yield "versions"
        return
    table, ids = tables.verdicts, [one.outcome for one in entries]
    query = select(table.c.outcome_id, table.c.version, table.c.place).where(
        table.c.tenant == row.tenant, table.c.outcome_id.in_(ids), table.c.leaf == row.leaf
    )
    recorded = _outcome_rows(reading, row.tenant, ids)
    seqs = {name: outcome.seq for name, outcome in recorded.items()}
    # Rows and runs are compared with what they name, each for itself.
    places: dict[str, Any] = {**reading.versions(row.tenant).in_segment(row.leaf, seqs)}
    places |= {one.outcome_id: one for one in reading.connection.execute(query)}
    for place, one in enumerate(entries):
        found = places.get(one.outcome)
        if found is None or (found.place, found.version) != (place, one.version):
            yield f"version of {one.outcome}"
        if contents[place].result is None and not _is_erased(reading, row.tenant, one, RESULT):
            yield f"result of {one.outcome}"
        if entry.evidence:
            outcome = recorded.get(one.outcome)
            differ = ["row"] if outcome is None else [*_compare_committed(reading, outcome, one)]
            yield from (f"{part} of {one.outcome}" for part in differ)


def _compare_verdict_run(reading: Reading, row: Any, entry: VersionSegmentEntry) -> Iterator[str]:
    """A run against its leaf, and its outcomes against the content of the segment."""
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        criteria_digest=(row.criteria_digest, entry.criteria),
        reason=(row.reason, entry.reason),
    )
    run = run_of(row)
    held = [(one.outcome, one.version) for one in reading.versions(row.tenant).segments.segment(row.leaf).contents()]
    seqs = run.seqs()
    table = tables.outcomes
    query = select(table.c.seq, table.c.id).where(
        table.c.tenant == row.tenant, table.c.seq >= row.first_seq, table.c.seq <= row.last_seq
    )
    ids = {one.seq: one.id for one in reading.connection.execute(query)}
    if seqs[-1] != row.last_seq or [(ids.get(seq), row.version) for seq in seqs] != held:
        yield "outcomes"


def _outcome_rows(reading: Reading, tenant: str, ids: Sequence[str]) -> dict[str, Any]:
    table = tables.outcomes
    query = select(table).where(table.c.tenant == tenant, table.c.id.in_(ids))
    return {row.id: row for row in reading.connection.execute(query)}


def _compare_governance(reading: Reading, row: Any, entry: GovernanceEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        disposition=(row.disposition, entry.disposition),
    )
    if row.body is None or row.salt is None:
        if not _is_erased(reading, row.tenant, entry, GOVERNANCE):
            yield "dossier"
    elif not _is_committed(entry.dossier, row.salt, row.body):
        yield "dossier"


def _compare_contract(reading: Reading, row: Any, entry: AwardEntry) -> Iterator[str]:
    logged = read_logged_contract(_sequence_entries(reading, row.tenant, row.id))
    yield from _differing(tenant=(row.tenant, entry.tenant), award=(entry, logged.award))
    yield from differing_fields(contract_from(row), logged)
    yield from _compare_run(reading, row, logged)
    works = tables.works
    work = reading.connection.execute(
        select(works).where(works.c.tenant == row.tenant, works.c.id == entry.work)
    ).first()
    if (
        work is None
        or sha256(bytes(work.body)).hexdigest() != entry.work_digest
        or (work.consumer_id, work.criteria_digest or "") != (entry.consumer, entry.criteria)
    ):
        yield "work"
    elif not _has_agreed_input(reading, work):
        yield "input of the work"


def _compare_run(reading: Reading, row: Any, logged: LoggedContract) -> Iterator[str]:
    """The run that a contract is to be paid for, the log's entry of its payment, and by whom its outcome is found."""
    table = tables.outcomes
    query = select(table.c.metadata_salt, table.c.agent_id).where(
        table.c.tenant == row.tenant, table.c.id == logged.outcome
    )
    outcome = reading.connection.execute(query).first()
    if outcome is not None and outcome.agent_id != row.agent_id:
        yield "agent of its outcome"
    if not is_logged_run(row.evidence, logged, None if outcome is None else outcome.metadata_salt):
        yield "run"
    elif row.evidence is not None and logged.settlements:
        payments = _sequence_entries(reading, row.tenant, run_sequence(row.evidence))
        if all(getattr(one, "contract", "") != row.id for one in payments):
            yield "payment of its run"


def _compare_api_key(reading: Reading, row: Any, _: None) -> Iterator[str]:
    """A key against the entries on it; one that is revoked admits no caller, even if its row differs."""
    entries = _sequence_entries(reading, row.tenant, api_key_sequence(row.id))
    return differing_key_fields(row, entries)


def _has_agreed_input(reading: Reading, work: Any) -> bool:
    """Whether a work refers to the input that its body commits to; the content is checked with the blobs."""
    committed, address = parse_stored_work(bytes(work.body)).input_commitment, work.input_address
    return matches_digest(committed, bytes(work.input_salt), address) and _is_stored(reading, work.tenant, address)


def _sequence_entries(reading: Reading, tenant: str, name: str) -> list[Entry]:
    """What the log says of one contract, run or API key, in order."""
    leaves = tables.log_leaves
    query = select(leaves.c.body).where(leaves.c.tenant == tenant, leaves.c.contract_id == name)
    bodies = reading.connection.execute(query.order_by(leaves.c.contract_seq)).scalars()
    return [entry for body in bodies if (entry := parse_leaf(body)) is not None]


def _is_committed(committed: str, salt: bytes | None, content: bytes | None) -> bool:
    """Whether the log commits to the content; true once it was erased, because nothing is left to compare."""
    return salt is None or content is None or matches(committed, bytes(salt), bytes(content))


def _compare_settlement(_: Reading, row: Any, entry: SettlementEntry) -> Iterator[str]:
    return _differing(
        tenant=(row.tenant, entry.tenant),
        contract_id=(row.contract_id, entry.contract),
        number=(row.number, entry.number),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        bill=(sha256(bytes(row.bill)).hexdigest(), entry.bill),
    )


def _compare_submission(_: Reading, row: Any, entry: GateEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        run_id=(row.run_id, entry.run),
        number=(row.number, entry.number),
        outcome=(row.outcome, entry.outcome),
        counted=(bool(row.counted), entry.counted),
    )
    if not _is_committed(entry.submission, row.salt, commitment_content(bytes(row.candidate), bytes(row.said))):
        yield "submission"


def _compare_usage(reading: Reading, row: Any, _: None) -> Iterator[str]:
    """A run has no leaf of its own: every entry of it commits to the run and its first observations."""
    logged = _sequence_entries(reading, row.tenant, contract_of(row.id))
    entries = [entry for entry in logged if isinstance(entry, UsageEntry)]
    salt = None if row.salt is None else bytes(row.salt)
    recorded = RecordedUsage(
        body=bytes(row.body),
        salt=salt,
        status=row.status,
        verdict=bytes(row.verdict),
        observations=_observations(reading, row),
    )
    difference = find_usage_difference(recorded, entries)
    if difference is not None:
        yield difference
    if row.progress is not None and not has_progress_of(recorded, row.progress, row.acknowledged):
        yield "progress"


def _observations(reading: Reading, row: Any) -> list[bytes]:
    table = tables.usage_observations
    query = select(table.c.body).where(table.c.tenant == row.tenant, table.c.run_id == row.id)
    return [bytes(body) for body in reading.connection.execute(query.order_by(table.c.number)).scalars()]


def _compare_segment(reading: Reading, row: Any, entry: SegmentEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        evaluation_id=(row.evaluation_id, entry.evaluation),
        number=(row.number, entry.number),
        cases=(row.cases, entry.cases),
    )
    contents = unpack(reading.blobs.content(reading.connection, row.tenant, row.address))
    if segment_root(entries_of(contents)).hex() != entry.root:
        yield "cases"
        return
    yield from _compare_cases(reading, row, contents)


def _compare_cases(reading: Reading, row: Any, contents: Sequence[CaseContent]) -> Iterator[str]:
    """The slim rows of a segment against its content."""
    table = tables.evaluation_cases
    query = select(table).where(
        table.c.tenant == row.tenant, table.c.evaluation_id == row.evaluation_id, table.c.segment == row.number
    )
    rows = {one.place: one for one in reading.connection.execute(query)}
    if rows.keys() != {*range(len(contents))}:
        yield f"{len(rows)} rows of {len(contents)} cases"
    for place, content in enumerate(contents):
        one, entry = rows.get(place), content.entry()
        if one is None:
            continue
        recorded = (one.case_id, one.repeat, one.outcome_id, one.version, one.verdict, bool(one.success))
        logged = (entry.case, entry.repeat, entry.outcome, entry.version, entry.verdict, entry.success)
        if recorded != logged or not _has_figures_of(one, content):
            yield f"case {one.case_id}"


def _has_figures_of(row: Any, content: CaseContent) -> bool:
    """Whether the slim row of a case says what its result and its metadata say; true once they were erased."""
    if content.erased is not None:
        return True
    made = CaseVerdict.of(VerificationResult.from_json(bytes(content.result)))
    latency_ms = latency_of(msgspec.json.decode(content.metadata))
    recorded = (row.score, row.statuses, row.faults, row.latency_ms)
    return recorded == (made.score, made.statuses, " ".join(made.faults) or None, latency_ms)


def _compare_figures(reading: Reading, row: Any, _: None) -> Iterator[str]:
    return differing_figures(reading.connection, row.tenant, row)


def _compare_review(reading: Reading, row: Any, entry: ReviewEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        id=(row.id, entry.review),
        evaluation_id=(row.evaluation_id, entry.evaluation),
        cases=(row.cases, entry.cases),
    )
    table = tables.review_draws
    query = select(table).where(table.c.tenant == row.tenant, table.c.review_id == row.id).order_by(table.c.number)
    draws = [
        (one.number, one.case_id, one.repeat, one.kind, one.stratum, one.probability)
        for one in reading.connection.execute(query)
    ]
    terms = decode_json(row.terms, ReviewTerms)
    if draws_digest(row.criterion, terms, draws) != entry.draw:
        yield "draws"


def _compare_label(reading: Reading, row: Any, entry: LabelEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        review_id=(row.review_id, entry.review),
        number=(row.number, entry.draw),
        labeller=(row.labeller, entry.labeller),
        version=(row.version, entry.version),
        recorded_by=(row.recorded_by, entry.by),
    )
    table = tables.review_draws
    draw = reading.connection.execute(
        select(table.c.case_id, table.c.repeat).where(
            table.c.tenant == row.tenant, table.c.review_id == row.review_id, table.c.number == row.number
        )
    ).first()
    case = "" if draw is None else f"{draw.case_id}#{draw.repeat}"
    if not _is_committed(entry.label, row.salt, label_content(case, row.choice, row.note_hash)):
        yield "label"
    if row.note is not None and not _is_committed(row.note_hash, row.note_salt, row.note.encode()):
        yield "note"


def _compare_calibration(_: Reading, row: Any, entry: CalibrationEntry) -> Iterator[str]:
    return _differing(
        tenant=(row.tenant, entry.tenant),
        version=(row.version, entry.version),
        judge=(row.judge, entry.judge),
        labels=(row.labels, entry.labels),
        kappa=("" if row.kappa is None else repr(row.kappa), entry.kappa),
    )


def _compare_vote(_: Reading, row: Any, entry: VoteEntry) -> Iterator[str]:
    yield from _differing(tenant=(row.tenant, entry.tenant), key=(row.key, entry.key))
    if not _is_committed(entry.vote, row.salt, row.body):
        yield "vote"


def _compare_transfer(reading: Reading, row: Any, entry: MoneyEntry) -> Iterator[str]:
    entries = _sequence_entries(reading, row.tenant, row.contract_id)
    award = next((one for one in entries if isinstance(one, AwardEntry)), None)
    if award is None:
        yield "award"
        return
    parties, settled = (
        Parties(contract_id=award.contract, consumer_id=award.consumer, agent_id=award.agent),
        dict[Any, Any](),
    )
    for one in entries:
        if isinstance(one, SettlementEntry):
            transfer_from_entry(row.leaf, one, parties, settled)
    expected = transfer_from_entry(row.leaf, entry, parties, settled)
    table = tables.postings
    found = reading.connection.execute(select(table).where(table.c.leaf == row.leaf)).all()
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        contract_id=(row.contract_id, expected.contract_id),
        operation=(row.operation, expected.operation),
        number=(row.number, expected.number),
        currency=(row.currency, expected.currency),
        postings=(tuple(sorted(Posting(one.account, one.micros) for one in found)), expected.postings),
    )
    if {(one.tenant, one.currency) for one in found} - {(row.tenant, row.currency)}:
        yield "postings"


def _compare_balance(reading: Reading, row: Any, _: None) -> Iterator[str]:
    """A balance is the sum of its postings; both are read by one statement, because money may move meanwhile."""
    balances, postings = tables.balances, tables.postings
    of = [balances.c.tenant == row.tenant, balances.c.currency == row.currency, balances.c.account == row.account]
    total = (
        select(func.coalesce(func.sum(postings.c.micros), 0))
        .where(postings.c.tenant == row.tenant, postings.c.currency == row.currency, postings.c.account == row.account)
        .scalar_subquery()
    )
    micros, summed = reading.connection.execute(select(balances.c.micros, total).where(*of)).one()
    return _differing(micros=(int(micros), int(summed)))


def _compare_account_total(reading: Reading, row: Any, _: None) -> Iterator[str]:
    """A total is the sum of its runs; both are read by one statement, because runs may change meanwhile."""
    totals, runs = tables.usage_account_totals, tables.usage_runs
    key = [totals.c.tenant == row.tenant, totals.c.account == row.account, totals.c.status == row.status]
    tokens = runs.c.last_input + runs.c.last_output
    capped = case((tokens > MAX_TOTAL_TOKENS, MAX_TOTAL_TOKENS), else_=tokens)
    summed = (
        select(
            func.count().label("runs"),
            func.coalesce(func.sum(capped), 0).label("tokens"),
            func.coalesce(func.sum(case((runs.c.code == UsageCode.UNATTRIBUTED, 1), else_=0)), 0).label("unattributed"),
        )
        .where(runs.c.tenant == row.tenant, runs.c.account == row.account, runs.c.status == row.status)
        .subquery()
    )
    names = ("runs", "tokens", "unattributed")
    columns = [of.c[name] for of in (totals, summed) for name in names]
    query = select(*columns).select_from(totals.join(summed, true())).where(*key)
    found = [int(value) for value in reading.connection.execute(query).one()]
    return _differing(**dict(zip(names, zip(found[:3], found[3:], strict=True), strict=True)))


def _compare_blob(reading: Reading, row: Any, _: None) -> Iterator[str]:
    problem = reading.blobs.find_damage(row.tenant, row.address, row.content, row.size)
    if problem is not None:
        yield problem


def _count_verdicts(entry: VerdictEntry | VersionSegmentEntry) -> int:
    # Versions of a segment are rows, or all in one run: whether each is there is compared with the segment.
    return 1 if isinstance(entry, VerdictEntry) else 0


def _count_outcomes(entry: EvidenceEntry | VersionSegmentEntry) -> int:
    return 1 if isinstance(entry, EvidenceEntry) else entry.versions * entry.evidence


CHECKS = (
    RowCheck(tables.log_keys, _compare_key, "seq", (KeyEntry,)),
    RowCheck(tables.criteria, _compare_criteria, "leaf", (CriteriaEntry,)),
    RowCheck(
        tables.outcomes,
        _compare_evidence,
        "evidence_leaf",
        (EvidenceEntry, VersionSegmentEntry),
        rows_of=_count_outcomes,
    ),
    RowCheck(
        tables.verdicts,
        _compare_verdict,
        "leaf",
        (VerdictEntry, VersionSegmentEntry),
        rows_of=_count_verdicts,
        shared="place",
    ),
    RowCheck(
        tables.verdict_runs,
        _compare_verdict_run,
        "leaf",
        (VersionSegmentEntry,),
        counts=False,
        page=SEGMENT_PAGE,
    ),
    RowCheck(tables.verdict_segments, _compare_versions, "leaf", (VersionSegmentEntry,), page=SEGMENT_PAGE),
    RowCheck(tables.governance_checks, _compare_governance, "leaf", (GovernanceEntry,)),
    RowCheck(tables.contracts, _compare_contract, "seq", (AwardEntry,)),
    RowCheck(tables.settlements, _compare_settlement, "leaf", (SettlementEntry,)),
    RowCheck(tables.transfers, _compare_transfer, "leaf", (AwardEntry, SettlementEntry, ReversalEntry, ReleaseEntry)),
    RowCheck(tables.balances, _compare_balance),
    RowCheck(tables.submissions, _compare_submission, "leaf", (GateEntry,)),
    RowCheck(tables.usage_runs, _compare_usage),
    RowCheck(tables.usage_account_totals, _compare_account_total),
    RowCheck(tables.evaluation_segments, _compare_segment, "leaf", (SegmentEntry,), page=SEGMENT_PAGE),
    RowCheck(tables.evaluation_figures, _compare_figures, code=DERIVED, page=1),
    RowCheck(tables.reviews, _compare_review, "leaf", (ReviewEntry,)),
    RowCheck(tables.review_labels, _compare_label, "leaf", (LabelEntry,)),
    # A later calibration or vote replaces the row, and votes are erased with the work that they are about.
    RowCheck(tables.judge_calibrations, _compare_calibration, "leaf", (CalibrationEntry,), counts=False),
    RowCheck(tables.judge_votes, _compare_vote, "leaf", (VoteEntry,), counts=False),
    RowCheck(tables.keys, _compare_api_key),
    RowCheck(tables.blobs, _compare_blob, code="blob"),
)
