"""What a worker of Ray does in an evaluation: it reads its share of the file, judges it, and packs finished segments.

It imports no records, because each worker would pay for loading them.
"""

import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from meruit.errors import MeruitError
from meruit.evaluations.bulk_judge import BulkJudge
from meruit.evaluations.case_judge import CaseJudge, FinishedSegment
from meruit.evaluations.datafiles import ColumnMap, DataFile
from meruit.evaluations.file_shares import FileShare, read_share
from meruit.model.canonical import from_canonical
from meruit.model.criterion import SuccessCriteria
from meruit.model.decoding import msgpack_decoder
from meruit.store.store import ClockAndEntropy
from meruit.verify.catalogue import CompiledCriteria

if TYPE_CHECKING:
    from meruit.verify.engine import VerificationEngine

MAX_JOBS = 4
"""How many evaluations a worker keeps ready."""


class SharedRun(msgspec.Struct, frozen=True):
    """What a worker makes its part of a run from: bytes and texts, so that equal ones are known to be equal."""

    criteria: bytes
    engine: bytes
    """How to make the engine, pickled."""
    tenant: str
    file: DataFile
    columns: ColumnMap


class JudgedShare(msgspec.Struct, frozen=True):
    """The finished segments of a share, and what its cases add up to."""

    segments: Sequence[FinishedSegment]
    judged: int
    passed: int
    open: int
    spent_micros: int


def try_share(shared: SharedRun, share: FileShare) -> bytes:
    """Judge a share: what runs in a worker. A problem comes back as text, because not every error can travel.

    As bytes of our own: Ray would spend as long on each case as judging it takes.
    """
    try:
        return msgspec.msgpack.encode(judge_share(shared, share))
    except MeruitError as problem:
        return msgspec.msgpack.encode(str(problem))


def read_reply(reply: bytes) -> JudgedShare | str:
    """What try_share answered: the share, or what was wrong."""
    return _READER.decode(reply)


_READER: msgspec.msgpack.Decoder[JudgedShare | str] = msgpack_decoder(JudgedShare | str)


def judge_share(shared: SharedRun, share: FileShare) -> JudgedShare:
    """The finished segments of a share; raises DocumentError and InvalidCase."""
    bulk, finished = BulkJudge(*_job(shared.criteria, shared.engine, shared.tenant)), list[FinishedSegment]()
    for case in read_share(shared.file, share, shared.columns):
        if segment := bulk.add(case):
            finished.append(segment)
    if segment := bulk.take():
        finished.append(segment)
    return JudgedShare(finished, bulk.judged, bulk.passed, bulk.open, bulk.spent_micros)


@lru_cache(maxsize=MAX_JOBS)
def _job(criteria: bytes, engine: bytes, tenant: str) -> tuple[CaseJudge, CompiledCriteria]:
    """The engine and the criteria, made once a worker."""
    # Written only by the process that started this worker.
    make_engine: Callable[[], VerificationEngine] = pickle.loads(engine)  # noqa: S301
    made = make_engine()
    return CaseJudge(made, tenant, ClockAndEntropy()), made.compile(
        SuccessCriteria.model_validate(from_canonical(criteria))
    )
