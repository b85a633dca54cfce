"""What callers ask of a store while its process dies: requests that can be repeated, and groups of them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from tests.outcomes.making import body_of, criteria_of, judged, record

from meruit.log.entries import criteria_digest_of
from meruit.model.access import Role
from meruit.model.outcome import Labels
from meruit.model.time import to_micros
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store import criteria
from meruit.outcomes.store import versions as versions_module
from meruit.outcomes.store.batches import OutcomePlace
from meruit.outcomes.store.rescored import AddRescored, RescoredResult, RescoredVersions
from meruit.outcomes.store.write import AddVersions, NewOutcome, NewVersion
from meruit.store import log as audit
from meruit.store import tables
from meruit.store.access import keys
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest, IdempotentWrite
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

TENANTS = ("acme", "zeta")
CONSUMER = "test"
LARGE = b"x" * 70_000
"""Beyond what SQLite keeps in its own file."""
RECENT = 50
A_TILE = 128
"""Outcomes of one request that always finish a tile of 256 entries."""


class Kind(StrEnum):
    """What a request is for."""

    RECORD = "record"
    REGISTER = "register"
    VERSIONS = "versions"
    KEY = "key"
    REVOKE = "revoke"
    SIGN = "sign"
    ADVANCE = "advance"


class Judged(NamedTuple):
    """Criteria and what was decided by them."""

    body: bytes
    result: VerificationResult

    @classmethod
    def by(cls, threshold: float, text: str = "the cat sat") -> "Judged":
        rules = criteria_of(threshold)
        return cls(body_of(rules), judged(rules, text))


VERDICTS = (Judged.by(0.5), Judged.by(0.5, "dog"), Judged.by(0.25, "the cat"))
INPUT, METADATA = b'{"reference":"the cat sat"}', b'{"duration_ms":12}'


@dataclass(frozen=True, slots=True)
class Made:
    """An outcome to be recorded."""

    id: str
    contract_id: str | None
    output: bytes
    verdict: Judged
    salts: bytes

    @property
    def contract(self) -> str:
        return self.contract_id or self.id


@dataclass(frozen=True, slots=True)
class Request:
    """One caller's wish; the same again is the same wish."""

    number: int
    kind: Kind
    tenant: str
    outcomes: tuple[Made, ...] = ()
    name: str = ""
    verdict: Judged = VERDICTS[0]
    expected: tuple[tuple[str, int], ...] = ()
    """Outcomes to be judged again, and the version that each has."""
    key_id: str = ""
    upto: int = 0

    @property
    def once(self) -> IdempotentRequest:
        return IdempotentRequest(f"key-{self.number}", "same", 201)

    @property
    def reply(self) -> bytes:
        return f"reply {self.number}".encode()

    @property
    def in_segment(self) -> bool:
        """Whether its outcomes are a batch, which has one set of criteria."""
        return len(self.outcomes) > 1 and len({one.verdict.body for one in self.outcomes}) == 1

    @property
    def repeats(self) -> bool:
        """Whether its second time is answered as its first."""
        return self.kind in (Kind.RECORD, Kind.REGISTER)

    # Any: each kind has an answer of its own.
    def write(self, store: Store) -> Write[Any]:
        """What the recorder is given."""
        made: Write[Any]
        match self.kind:
            case Kind.RECORD:
                several = [_new(store, self.tenant, one) for one in self.outcomes]
                made = record(several, self.once, self.tenant, self.reply, in_segment=self.in_segment)
            case Kind.REGISTER:
                body = self.verdict.body
                register = criteria.RegisterCriteria(self.tenant, self.name, body, criteria_digest_of(body), "")
                made = IdempotentWrite(self.tenant, self.once, register, lambda _: self.reply)
            case Kind.VERSIONS:
                versions = tuple(NewVersion(*one, self.verdict.result, os.urandom(16)) for one in self.expected)
                made = AddVersions(self.tenant, self.verdict.body, versions, "again")
                if self.number % 2 and versions:
                    made = rescored_like(store, made)
            case Kind.KEY:
                made = keys.NewKey(self.tenant, Role.OPERATOR, f"key {self.number}", None, None, os.urandom)
            case Kind.REVOKE:
                made = keys.Revoke(self.key_id, self.tenant)
            case Kind.SIGN:
                made = audit.write_nothing
            case Kind.ADVANCE:
                made = Advance(self.name or CONSUMER, self.upto)
        return made


# Few outcomes are enough for a run here.
versions_module.MIN_RUN = 1


def rescored_like(store: Store, several: AddVersions) -> AddRescored:
    """The same versions as a rescore writes them: in one segment."""
    table, ids = tables.outcomes, [one.outcome_id for one in several.versions]
    query = select(table).where(table.c.tenant == several.tenant, table.c.id.in_(ids))
    with store.database.reading() as connection:
        rows = {row.id: row for row in connection.execute(query)}
    versions = RescoredVersions()
    for one in several.versions:
        versions.add(_place(rows[one.outcome_id], one.expected), RescoredResult.of(one.result), one.salt)
    body, digest, at = several.criteria, criteria_digest_of(several.criteria), several.versions[0].result.verified_at
    return AddRescored.of(several.tenant, (body, digest), versions, several.reason, to_micros(at))


# Any: a row of SQLAlchemy's.
def _place(row: Any, version: int) -> OutcomePlace:
    return OutcomePlace(
        row.id,
        row.seq,
        version,
        row.verdict,
        row.score,
        row.success,
        row.criteria_digest,
        row.contract_id,
        row.evidence_leaf,
    )


class Advance(NamedTuple):
    """A consumer has done with all events up to a place."""

    consumer: str
    upto: int

    def __call__(self, writing: WriteTransaction) -> None:
        if writing.read(select(tables.cursors.c.seq).where(tables.cursors.c.consumer == self.consumer)):
            writing.change(_MOVE, who=self.consumer, upto=self.upto)
        else:
            writing.insert(
                tables.cursors,
                consumer=self.consumer,
                seq=self.upto,
            )


_MOVE = update(tables.cursors).where(tables.cursors.c.consumer == bindparam("who")).values(seq=bindparam("upto"))


def _new(store: Store, tenant: str, made: Made) -> NewOutcome:
    parts = (store.blobs.part(tenant, content) for content in (INPUT, made.output, METADATA))
    given, done, measured = parts
    labels = Labels(made.contract_id, "agent")
    return NewOutcome(
        tenant, made.id, labels, given, done, measured, made.verdict.body, made.verdict.result, made.salts
    )


def told(request: Request, answer: Any) -> dict[str, Any]:
    """An answer in few enough bytes to be written in one go."""
    if isinstance(answer, IdempotentReplay):
        return {"status": answer.status, "reply": answer.reply.decode()}
    match request.kind:
        case Kind.RECORD | Kind.VERSIONS:
            return {"leaves": [[one.version, one.leaf] for one in answer]}
        case Kind.REGISTER:
            return {"version": answer.version}
        case Kind.KEY:
            return {"key": answer.key.id}
        case Kind.REVOKE:
            return {"key": answer.id}
        case Kind.SIGN | Kind.ADVANCE:
            return {}


@dataclass(slots=True)
class Asked:
    """All that was asked of one store, and what was answered: the truth that the store is held to."""

    requests: list[Request] = field(default_factory=list)
    answers: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By number; a request that was repeated has several."""
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    """The version that an outcome is known to have."""
    keys: list[tuple[str, str]] = field(default_factory=list)
    """Tenant and id of those in force."""
    events: int = 0
    """The newest event that is known of."""
    _numbers: "count[int]" = field(default_factory=count)

    def heard(self, number: int, answer: dict[str, Any]) -> None:
        """An acknowledgement."""
        self.answers.setdefault(number, []).append(answer)
        request = self.requests[number]
        match request.kind:
            case Kind.RECORD:
                for made in request.outcomes:
                    self.versions.setdefault((request.tenant, made.id), 1)
            case Kind.VERSIONS:
                # One that was repeated after it had come through is told of no version, and still knows the next.
                for outcome, expected in request.expected:
                    self.versions[request.tenant, outcome] = expected + 1
            case Kind.KEY:
                self.keys.append((request.tenant, answer["key"]))
            case _:
                pass

    def _request(self, kind: Kind, **more: Any) -> Request:
        number = next(self._numbers)
        made = Request(number, kind, TENANTS[number % 2], **more)
        self.requests.append(made)
        return made

    def record(self, many: int = 1, *, large: bool = False) -> Request:
        here = len(self.requests)
        return self._request(
            Kind.RECORD,
            outcomes=tuple(
                Made(
                    f"out_{here}_{index}",
                    None if (here + index) % 3 == 0 else f"contract-{(here + index) % 4}",
                    b'{"of":"%d.%d"}' % (here, index) + (LARGE if large else b""),
                    # Every second request is a batch.
                    VERDICTS[(here + index * (here % 2)) % 3],
                    os.urandom(64),
                )
                for index in range(many)
            ),
        )

    def register(self) -> Request:
        # Never the same twice, so that each is a version of its own.
        return self._request(Kind.REGISTER, name=f"name-{len(self.requests) % 5}", verdict=Judged.by(self._fresh()))

    def again(self) -> Request:
        tenant = TENANTS[len(self.requests) % 2]
        # Whoever still waits for an answer may have changed the version that an outcome has.
        waiting = [
            one for one in self.requests[-RECENT:] if one.kind is Kind.VERSIONS and one.number not in self.answers
        ]
        unsure = {outcome for one in waiting for outcome, _ in one.expected}
        recent = [*self.versions.items()][-RECENT:]
        sure = [(outcome, version) for (of, outcome), version in recent if of == tenant and outcome not in unsure]
        return self._request(Kind.VERSIONS, expected=tuple(sure[-2:]), verdict=Judged.by(self._fresh()))

    def key(self) -> Request:
        return self._request(Kind.KEY)

    def revoke(self) -> Request:
        tenant = TENANTS[len(self.requests) % 2]
        mine = next((index for index, (owner, _) in enumerate(self.keys) if owner == tenant), None)
        return self.key() if mine is None else self._request(Kind.REVOKE, key_id=self.keys.pop(mine)[1])

    def sign(self) -> Request:
        return self._request(Kind.SIGN)

    def advance(self, consumer: str = "") -> Request:
        return self._request(Kind.ADVANCE, upto=self.events, name=consumer)

    def _fresh(self) -> float:
        return (len(self.requests) + 1) / 1_000_003


Groups = Sequence[Sequence[Request]]
"""Callers of one group share a transaction; groups come one after the other."""


def _single(asked: Asked) -> Groups:
    return [[asked.record()], [asked.record(large=True)]]


def _group(asked: Asked) -> Groups:
    return [
        [asked.record(), asked.register(), asked.record(3), asked.again(), asked.key()],
        [asked.record(), asked.record(), asked.record()],
    ]


def _criteria(asked: Asked) -> Groups:
    return [[asked.register()], [asked.register(), asked.register()]]


def _versions(asked: Asked) -> Groups:
    return [[asked.again()], [asked.again(), asked.record()]]


def _repeated(asked: Asked) -> Groups:
    one, other = asked.record(2), asked.register()
    return [[one, one, other], [other, one]]


def _keys(asked: Asked) -> Groups:
    return [[asked.key(), asked.key()], [asked.revoke(), asked.key()]]


def _signed(asked: Asked) -> Groups:
    return [[asked.record(), asked.sign()], [asked.sign()]]


def _consumed(asked: Asked) -> Groups:
    return [[asked.advance(), asked.advance(f"consumer-{len(asked.requests)}")], [asked.record()]]


def _tile(asked: Asked) -> Groups:
    return [[asked.record(A_TILE)]]


WORKLOADS: dict[str, Callable[[Asked], Groups]] = {
    "single": _single,
    "group": _group,
    "criteria": _criteria,
    "versions": _versions,
    "repeated": _repeated,
    "keys": _keys,
    "signed": _signed,
    "consumed": _consumed,
    "tile": _tile,
}
ROUND = (*WORKLOADS, *(name for name in WORKLOADS if name != "tile"))
"""A tile takes ten times as long as the others, and comes half as often."""
