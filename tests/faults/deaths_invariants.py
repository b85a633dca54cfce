"""What must hold in a store after any death: one function for each rule, each answering what broke it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Table, func, select, tuple_
from tests.faults.deaths_requests import CONSUMER, INPUT, METADATA, Asked, Kind, Made, Request
from tests.outcomes.making import naive_root

from meruit.log.commitment import SALT_BYTES, commitment_to, matches
from meruit.log.entries import (
    CriteriaEntry,
    Entry,
    EvidenceEntry,
    KeyEntry,
    VerdictEntry,
    VersionSegmentEntry,
    criteria_digest_of,
    read_entry,
)
from meruit.log.merkle import Frontier, is_consistent, leaf_hash
from meruit.log.note import open_checkpoint
from meruit.log.segment import segment_root, version_bytes
from meruit.outcomes.records import SegmentReader, VersionReader
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.store import Store

MAX_IN = 500
"""Values of one IN."""


@dataclass(slots=True)
class Seen:
    """How far a store was checked."""

    size: int = 0
    peaks: bytes = b""
    outcomes: int = 0
    events: int = 0
    told: dict[str, int] = field(default_factory=dict)
    """Each event's place by what it tells of."""
    delivered: set[int] = field(default_factory=set)
    """The places of the events that the consumer was given."""

    @property
    def frontier(self) -> Frontier:
        return Frontier.from_bytes(self.size, self.peaks)


class View(NamedTuple):
    """What is new in a store since it was checked, and what is there of certain requests."""

    store: Store
    connection: Connection
    seen: Seen
    requests: Sequence[Request]
    asked: Asked
    # Any: rows of SQLAlchemy's have their columns as attributes, which no type says.
    state: Any
    leaves: dict[int, tuple[Any, Entry]]
    new: range
    """The places of those leaves that are new."""
    outcomes: dict[tuple[str, str], Any]
    verdicts: dict[tuple[str, str, int], Any]
    """With results and salts, wherever those are kept."""
    segments: dict[int, Any]
    """By their leaves."""
    blobs: dict[tuple[str, str], Any]
    events: Sequence[Any]
    replies: dict[tuple[str, str], Any]
    names: dict[tuple[str, str], Any]
    """Named criteria by tenant and digest."""
    keys: dict[str, Any]
    whole: bool
    """Whether all of the store is looked at."""

    @property
    def told(self) -> dict[str, int]:
        return {**self.seen.told, **{name: event.seq for event in self.events for name in names_of(event)}}

    def entry(self, seq: int) -> Entry | None:
        """The entry at a place, where it was looked at."""
        return self.leaves[seq][1] if seq in self.leaves else None

    def committed_to(self, verdict: Any) -> str | None:
        """What the log says of a version's result, as a salted hash; None where it says nothing."""
        entry = self.entry(verdict.leaf)
        if isinstance(entry, VerdictEntry):
            return entry.result
        if not isinstance(entry, VersionSegmentEntry) or verdict.leaf not in self.segments:
            return None
        held = SegmentReader(self.connection, verdict.tenant).segment(verdict.leaf).contents()
        one = held[verdict.place].entry()
        root = segment_root([version_bytes(other.entry()) for other in held]).hex()
        is_it = (one.outcome, one.version) == (verdict.outcome_id, verdict.version)
        return one.result if root == entry.root and is_it else None

    def is_there(self, request: Request) -> bool:
        """Whether anything tells of the request."""
        match request.kind:
            case Kind.RECORD:
                return any((request.tenant, made.id) in self.outcomes for made in request.outcomes)
            case Kind.REGISTER:
                return (request.tenant, criteria_digest_of(request.verdict.body)) in self.names
            case _:
                return False


class _Reader(NamedTuple):
    """Reads all rows of a table, or those that are asked for."""

    connection: Connection
    whole: bool

    # Any: as above.
    def rows(self, table: Table, columns: tuple[str, ...], values: Iterable[Any]) -> list[Any]:
        if self.whole:
            return [*self.connection.execute(select(table))]
        wanted = sorted(set(values))
        chosen = tuple_(*(table.c[name] for name in columns))
        return [
            row
            for start in range(0, len(wanted), MAX_IN)
            for row in self.connection.execute(select(table).where(chosen.in_(wanted[start : start + MAX_IN])))
        ]

    def after(self, table: Table, place: int) -> list[Any]:
        return [*self.connection.execute(select(table).where(table.c.seq > place).order_by(table.c.seq))]


def look(store: Store, connection: Connection, seen: Seen, asked: Asked, requests: Sequence[Request]) -> View:
    """Read what the rules speak of."""
    read = _Reader(connection, whole=seen.size == 0)
    state = connection.execute(select(tables.log_state)).one()
    leaves = {row.seq: (row, read_entry(row.body)) for row in read.after(tables.log_leaves, seen.size - 1)}
    named = [(request.tenant, made.id) for request in requests for made in request.outcomes]
    named += [(request.tenant, outcome) for request in requests for outcome, _ in request.expected]
    found = [*read.after(tables.outcomes, seen.outcomes), *read.rows(tables.outcomes, ("tenant", "id"), named)]
    outcomes = {(row.tenant, row.id): row for row in found}
    addresses = ((row.tenant, address) for row in outcomes.values() for address in _addresses(row))
    once = ((request.tenant, request.once.key) for request in requests if request.repeats)
    registered = (
        (request.tenant, criteria_digest_of(request.verdict.body))
        for request in requests
        if request.kind is Kind.REGISTER
    )
    of_keys = any(request.kind in (Kind.KEY, Kind.REVOKE) for request in requests)
    judged = [*_judged(connection, outcomes)]
    held = read.rows(tables.verdict_segments, ("leaf",), ((row.leaf,) for row in judged))
    return View(
        store,
        connection,
        seen,
        requests,
        asked,
        state,
        leaves,
        range(seen.size, state.size),
        outcomes,
        verdicts={(row.tenant, row.outcome_id, row.version): row for row in judged},
        segments={row.leaf: row for row in held},
        blobs={(row.tenant, row.address): row for row in read.rows(tables.blobs, ("tenant", "address"), addresses)},
        events=read.after(tables.events, seen.events),
        replies={(row.tenant, row.key): row for row in read.rows(tables.idempotency, ("tenant", "key"), once)},
        names={
            (row.tenant, row.digest): row for row in read.rows(tables.criteria_names, ("tenant", "digest"), registered)
        },
        keys={row.id: row for row in connection.execute(select(tables.keys))} if of_keys else {},
        whole=read.whole,
    )


# Any: rows, and what has the same names.
def _judged(connection: Connection, outcomes: Mapping[tuple[str, str], Any]) -> Iterator[Any]:
    """Every version of these outcomes with its result and salt, wherever they are."""
    for tenant in {tenant for tenant, _ in outcomes}:
        reader = VersionReader(connection, tenant)
        seqs = {row.id: row.seq for row in outcomes.values() if row.tenant == tenant}
        for found in chain.from_iterable(reader.of_many(seqs).values()):
            row = structs.asdict(reader.complete(found))
            if found.place is not None:
                held = reader.segments.segment(found.leaf).content(found.place)
                row |= {"result": held.result, "salt": held.salt}
            yield SimpleNamespace(tenant=tenant, **row)


# Any: as above.
def names_of(event: Any) -> list[str]:
    """What an event tells of: one thing, or the outcomes of a segment."""
    several = msgspec.json.decode(event.data).get("outcomes", [])
    return [told_of(event), *(f"{event.tenant} {one['outcome_id']}:{one['version']}" for one in several)]


# Any: as above.
def told_of(event: Any) -> str:
    """What an event tells of; tenants may use the same names."""
    return f"{event.tenant} {event.idempotency_key}"


def everything_acknowledged_is_there(view: View) -> Iterator[str]:
    """What a caller was told is durable is there, and is what the caller gave."""
    for request in view.requests:
        for answer in view.asked.answers.get(request.number, ()):
            yield from (
                f"{request.kind} {request.number}, told {answer}: {problem}"
                for problem in _lacking(view, request, answer)
            )


def _lacking(view: View, request: Request, answer: dict[str, Any]) -> Iterator[str]:
    match request.kind:
        case Kind.RECORD:
            leaves = answer.get("leaves") or [None] * len(request.outcomes)
            for made, leaf in zip(request.outcomes, leaves, strict=True):
                yield from _unequal(view, request, made, leaf)
        case Kind.REGISTER:
            row = view.names.get((request.tenant, criteria_digest_of(request.verdict.body)))
            if row is None or row.name != request.name or row.version != answer.get("version", row.version):
                yield f"its version is {row}"
        case Kind.VERSIONS:
            yield from _without_version(view, request, answer["leaves"])
        case _:
            if not _is_done(view, request, answer):
                yield "it is not done"


def _without_version(view: View, request: Request, leaves: Sequence[list[int]]) -> Iterator[str]:
    for outcome, expected in request.expected:
        row = view.verdicts.get((request.tenant, outcome, expected + 1))
        if row is None or row.result != request.verdict.result.to_json():
            yield f"version {expected + 1} of {outcome} is {row}"
        # One that was repeated after it had come through is told of no entry.
        elif leaves and [expected + 1, row.leaf] not in leaves:
            yield f"version {expected + 1} of {outcome} is at {row.leaf}"


def _is_done(view: View, request: Request, answer: dict[str, Any]) -> bool:
    if request.kind is Kind.KEY:
        return answer["key"] in view.keys
    if request.kind is Kind.REVOKE:
        return view.keys[request.key_id].revoked_at is not None
    if request.kind is Kind.ADVANCE:
        return cursor_of(view.connection, request.name or CONSUMER) >= request.upto
    latest = audit.best_witnessed(view.connection, 0)
    return latest is not None and latest.size >= view.seen.size


def _unequal(view: View, request: Request, made: Made, leaf: list[int] | None) -> Iterator[str]:
    row = view.outcomes.get((request.tenant, made.id))
    verdict = view.verdicts.get((request.tenant, made.id, 1))
    if row is None or verdict is None:
        yield f"{made.id}: {row}, {verdict}"
        return
    if (row.contract_id, row.agent_id) != (made.contract, "agent"):
        yield f"{made.id} has the labels {row.contract_id}, {row.agent_id}"
    if verdict.result != made.verdict.result.to_json() or verdict.criteria_digest != criteria_digest_of(
        made.verdict.body
    ):
        yield f"{made.id} has another result"
    if leaf is not None and leaf != [1, verdict.leaf]:
        yield f"{made.id} was told of {leaf}, and is at {verdict.leaf}"
    for address, content in zip(_addresses(row), (INPUT, made.output, METADATA), strict=True):
        if view.store.blobs.content(view.connection, request.tenant, address) != content:
            yield f"{made.id} has other evidence at {address}"
    salts = [made.salts[start : start + SALT_BYTES] for start in range(0, 64, SALT_BYTES)]
    if [row.input_salt, row.output_salt, row.metadata_salt, verdict.salt] != salts:
        yield f"{made.id} has other salts"


def _addresses(row: Any) -> tuple[str, str, str]:
    return row.input_address, row.output_address, row.metadata_address


def nothing_is_doubled(view: View) -> Iterator[str]:
    """Each entry in the log is the one that its record points to, and each event tells of something of its own."""
    for seq in view.new:
        entry = view.entry(seq)
        if isinstance(entry, EvidenceEntry):
            row = view.outcomes.get((entry.tenant, entry.outcome))
            if row is None or row.evidence_leaf != seq:
                yield f"the evidence of {entry.outcome} at {seq} is nobody's: {row}"
        if isinstance(entry, VerdictEntry):
            row = view.verdicts.get((entry.tenant, entry.outcome, entry.version))
            if row is None or row.leaf != seq:
                yield f"the verdict {entry.version} on {entry.outcome} at {seq} is nobody's: {row}"
        if isinstance(entry, VersionSegmentEntry):
            rows = [row for row in view.verdicts.values() if row.leaf == seq]
            if seq not in view.segments or sorted(row.place for row in rows) != [*range(entry.versions)]:
                yield f"the segment at {seq} has the versions {rows}"
    told = Counter(name for event in view.events for name in names_of(event))
    yield from (f"{times} events tell of {key}" for key, times in told.items() if times > 1 or key in view.seen.told)


def no_request_is_half_there(view: View) -> Iterator[str]:
    """It is there with its rows, events, evidence and reply, or nothing of it is."""
    told = view.told
    for request in view.requests:
        parts = [*_parts(view, told, request)] if request.repeats else []
        if len(set(parts)) > 1:
            yield f"{request.kind} {request.number} is half there: {parts}"


def no_verdict_is_half_there(view: View) -> Iterator[str]:
    """Each has its entry in the log, its event and its outcome."""
    told = view.told
    for key, verdict in view.verdicts.items():
        if verdict.leaf not in view.new:
            continue
        tenant, outcome, version = key
        committed = view.committed_to(verdict)
        row = view.outcomes.get((tenant, outcome))
        if committed is None or not matches(committed, verdict.salt, verdict.result):
            yield f"the verdict {key} has the entry {view.entry(verdict.leaf)}"
        if f"{tenant} {outcome}:{version}" not in told:
            yield f"the verdict {key} has no event"
        if row is None or row.version < version:
            yield f"the verdict {key} has the outcome {row}"


def no_outcome_is_half_there(view: View) -> Iterator[str]:
    """Each has its evidence in the log, and as many verdicts as its version says."""
    for row in view.outcomes.values():
        if row.evidence_leaf in view.new and not _holds_evidence(view, row):
            yield f"the outcome {row.id} has the evidence {view.entry(row.evidence_leaf)}"
        if any((row.tenant, row.id, version) not in view.verdicts for version in range(1, row.version + 1)):
            yield f"the outcome {row.id} lacks one of {row.version} verdicts"


def _holds_evidence(view: View, row: Any) -> bool:
    """Whether the leaf of an outcome commits to its work."""
    entry, addresses = view.entry(row.evidence_leaf), _addresses(row)
    if isinstance(entry, EvidenceEntry):
        return True
    first = view.verdicts.get((row.tenant, row.id, 1))
    if not isinstance(entry, VersionSegmentEntry) or not entry.evidence or first is None:
        return False
    held = SegmentReader(view.connection, row.tenant).segment(row.evidence_leaf).content(first.place).entry()
    salts = row.input_salt, row.output_salt, row.metadata_salt
    expected = [commitment_to(salt, address) for salt, address in zip(salts, addresses, strict=True)]
    return [held.input, held.output, held.metadata] == expected and held.outcome == row.id


def no_key_is_half_there(view: View) -> Iterator[str]:
    """Each was told of when it was made, and when it was revoked."""
    told = view.told
    for key_id, row in view.keys.items():
        created, revoked = (f"{row.tenant} {key_id}:key.{what}" in told for what in ("created", "revoked"))
        if not created or (row.revoked_at is not None) != revoked:
            yield f"the key {key_id} and its events differ"


def _parts(view: View, told: dict[str, int], request: Request) -> Iterator[bool]:
    """Of each part of a request, whether it is there."""
    reply = view.replies.get((request.tenant, request.once.key))
    yield reply is not None and reply.reply == request.reply
    if request.kind is Kind.REGISTER:
        row = view.names.get((request.tenant, criteria_digest_of(request.verdict.body)))
        yield row is not None
        yield row is not None and f"{request.tenant} criteria/{request.name}:{row.version}" in told
    for made in request.outcomes:
        row = view.outcomes.get((request.tenant, made.id))
        verdict = view.verdicts.get((request.tenant, made.id, 1))
        yield row is not None
        yield verdict is not None
        yield f"{request.tenant} {made.id}:1" in told
        if row is not None:
            yield from ((row.tenant, address) in view.blobs for address in _addresses(row))


def the_log_only_grew(view: View) -> Iterator[str]:
    """The log holds what it held, and the root of what it holds now is the one that is kept."""
    found = [view.leaves[seq][0] for seq in view.new if seq in view.leaves]
    if len(found) != len(view.new):
        yield f"of the entries {view.new} there are {len(found)}"
        return
    if view.connection.execute(select(func.count()).select_from(tables.log_leaves)).scalar() != view.state.size:
        yield f"there are entries beyond {view.state.size}"
    yield from (f"the hash of the entry {row.seq} is not its own" for row in found if leaf_hash(row.body) != row.hash)
    kept = Frontier.from_bytes(view.state.size, view.state.peaks)
    if view.seen.frontier.extend([row.hash for row in found]) != kept:
        yield f"the root of {kept.size} entries is not the one kept"
    proof = audit.proof_of_consistency(view.connection, view.seen.size, kept.size)
    if not is_consistent(view.seen.size, kept.size, proof, view.seen.frontier.root(), kept.root()):
        yield f"{kept.size} entries do not begin with the {view.seen.size} there were"
    if view.whole and naive_root([row.hash for row in found]) != kept.root():
        yield f"the root of all {kept.size} entries is another"


def checkpoints_are_of_this_log(view: View) -> Iterator[str]:
    """Each is signed by the store's key, over the root at its size."""
    rows = view.connection.execute(select(tables.checkpoints).where(tables.checkpoints.c.size > view.seen.size))
    for row in rows:
        checkpoint = open_checkpoint(row.note, view.store.signer.verifier)
        part = [view.leaves[seq][0].hash for seq in range(view.seen.size, row.size)]
        if (checkpoint.size, checkpoint.root) != (row.size, view.seen.frontier.extend(part).root()):
            yield f"the checkpoint of {row.size} is {checkpoint}"


def entries_of_a_contract_have_no_gap(view: View) -> Iterator[str]:
    """They are numbered from 1."""
    table = tables.log_leaves
    touched = {
        (row.tenant, row.contract_id) for seq, (row, _) in view.leaves.items() if seq in view.new and row.contract_id
    }
    # Those with one outcome only are looked at in the log itself; the others grow, and are counted.
    for tenant, contract in sorted(touched):
        mine = (table.c.tenant == tenant) & (table.c.contract_id == contract)
        number, last = view.connection.execute(select(func.count(), func.max(table.c.contract_seq)).where(mine)).one()
        if number != last:
            yield f"{tenant} {contract} has {number} entries up to {last}"
    for seq in view.new:
        row, entry = view.leaves.get(seq, (None, None))
        if (
            isinstance(entry, EvidenceEntry | VerdictEntry)
            and row is not None
            and row.contract_seq != entry.contract_seq
        ):
            yield f"the entry {seq} has the number {row.contract_seq}"


def criteria_are_committed_before_they_judge(view: View) -> Iterator[str]:
    """Each verdict points to criteria that the log holds."""
    for seq in view.new:
        entry = view.entry(seq)
        if isinstance(entry, VerdictEntry | VersionSegmentEntry):
            index = entry.criteria_index
            found = view.entry(index) or read_entry(audit.leaf(view.connection, index).body)
            if not isinstance(found, CriteriaEntry) or (found.tenant, found.digest) != (entry.tenant, entry.criteria):
                yield f"the verdict at {seq} is by {found}"


def events_have_no_gap(view: View) -> Iterator[str]:
    """They are numbered from 1 on, in the order of commits."""
    if [event.seq for event in view.events] != [*range(view.seen.events + 1, view.state.events + 1)]:
        yield f"of the events from {view.seen.events + 1} to {view.state.events} there are {len(view.events)}"
    if view.whole and [*sorted(row.seq for row in view.outcomes.values())] != [*range(1, view.state.outcomes + 1)]:
        yield f"of {view.state.outcomes} outcomes there are {len(view.outcomes)}"


def the_consumer_missed_nothing(view: View) -> Iterator[str]:
    """It was given each event at least once before its cursor passed it."""
    cursor = cursor_of(view.connection)
    missed = [seq for seq in range(1, cursor + 1) if seq not in view.seen.delivered]
    if missed:
        yield f"the cursor is at {cursor}, and the consumer was never given {missed[:5]}"


def nothing_is_there_that_nobody_asked_for(view: View) -> Iterator[str]:
    """Whatever is found was asked for; evidence is counted as often as it is referred to."""
    if not view.whole:
        return
    asked = {(request.tenant, made.id) for request in view.requests for made in request.outcomes}
    yield from (f"nobody asked for {key}" for key in view.outcomes.keys() - asked)
    refs = Counter((row.tenant, address) for row in view.outcomes.values() for address in _addresses(row))
    refs.update((row.tenant, row.address) for row in view.segments.values())
    if refs != {key: row.refs for key, row in view.blobs.items()}:
        yield "evidence is counted otherwise than it is referred to"
    for row in view.blobs.values():
        if row.content is not None and sha256(row.content).hexdigest() != row.address:
            yield f"the evidence {row.address} is damaged"
    if sum(isinstance(entry, KeyEntry) for _, entry in view.leaves.values()) != 1:
        yield "the signing key was admitted more than once"
    if view.connection.dialect.name == "sqlite":
        said = view.connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        yield from (f"SQLite finds {problem}" for problem in said if problem != "ok")


def cursor_of(connection: Connection, consumer: str = CONSUMER) -> int:
    """How far a consumer has come."""
    query = select(tables.cursors.c.seq).where(tables.cursors.c.consumer == consumer)
    return int(connection.execute(query).scalar() or 0)


RULES: Sequence[Callable[[View], Iterable[str]]] = (
    the_log_only_grew,
    events_have_no_gap,
    nothing_is_doubled,
    no_request_is_half_there,
    no_verdict_is_half_there,
    no_outcome_is_half_there,
    no_key_is_half_there,
    everything_acknowledged_is_there,
    entries_of_a_contract_have_no_gap,
    criteria_are_committed_before_they_judge,
    checkpoints_are_of_this_log,
    the_consumer_missed_nothing,
    nothing_is_there_that_nobody_asked_for,
)


def broken(view: View) -> list[str]:
    """Every rule that does not hold."""
    return [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(view)]
