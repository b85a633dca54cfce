"""`/v1/datasets`: cases that are kept by name and version. Agents may not read them: they hold references."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from meruit.api.auth import OPERATORS, READERS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.request import ApiRequest
from meruit.api.wire.common import Body, CriteriaName, Key, Limit, anchor_pattern, json_response
from meruit.api.wire.evaluations import CaseBody, CaseCursor
from meruit.evaluations.datasets import DatasetDiff, Datasets, parse_cursor
from meruit.evaluations.evaluation import Case, DatasetRecord
from meruit.model.record import Record
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_ROWS = 100_000
"""Most cases of one request; larger datasets are added with `meruit dataset add`."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_REFERENCE = anchor_pattern(rf"{_NAME}(@[1-9][0-9]{{0,8}})?")
DatasetPath = Annotated[
    str, PathParameter(pattern=_REFERENCE, description="`name@version`, or `name` for the latest version.")
]
DatasetQuery = Annotated[
    str, QueryParameter(name="with", pattern=_REFERENCE, description="The version to compare with.")
]
NameQuery = Annotated[str | None, QueryParameter(pattern=anchor_pattern(_NAME), required=False)]
DatasetCursor = Annotated[
    str | None,
    QueryParameter(
        pattern=anchor_pattern(rf"{_NAME}@[1-9][0-9]{{0,8}}"),
        required=False,
        description="Cursor: pass the `next` value of the previous page.",
    ),
]


class DatasetRequest(Body, frozen=True):
    """Cases to keep as the next version of a dataset."""

    name: CriteriaName
    cases: Annotated[list[CaseBody], Meta(min_length=1, max_length=MAX_ROWS)]


class DatasetPage(Record, frozen=True):
    """Versions of datasets by name, the latest of each first."""

    datasets: list[DatasetRecord]
    next: str | None
    """Pass it as `before` to get the next page; null on the last page."""


class DatasetCases(Record, frozen=True):
    """Cases of a dataset in their order."""

    cases: list[Case]
    next: int | None
    """Pass it as `after` to get the next page; null on the last page."""


def _datasets(request: ApiRequest) -> Datasets:
    return Datasets(request.service.store, request.caller.tenant)


@post("/v1/datasets", status_code=201, guards=[OPERATORS], summary="Add a version of a dataset", tags=["datasets"])
async def add_dataset(data: JSONBody[DatasetRequest], request: ApiRequest, key: Key = None) -> Response[DatasetRecord]:
    """Keep cases as the next version of a dataset. The same cases as in the latest version are not a new version."""

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        # In the thread: there may be many.
        added = await asyncio.to_thread(_datasets(request).add, data.name, lambda: map(CaseBody.to_case, data.cases))
        return await request.store_reply(once, msgspec.json.encode(added))

    try:
        return await request.answer_once(key, 201, act)
    finally:
        await request.free_payloads(data.cases)


@get("/v1/datasets", guards=[READERS], summary="List datasets", tags=["datasets"])
async def list_datasets(
    request: ApiRequest, name: NameQuery = None, before: DatasetCursor = None, limit: Limit = 50
) -> Response[DatasetPage]:
    """List versions of datasets by name, the latest of each first."""
    cursor = parse_cursor(before)
    found = await run_in_reader_thread(lambda: _datasets(request).page(name=name, before=cursor, limit=limit))
    return json_response(DatasetPage(found, found[-1].reference if len(found) == limit else None))


@get("/v1/datasets/{dataset:str}", guards=[READERS], summary="Read a dataset", tags=["datasets"])
async def read_dataset(dataset: DatasetPath, request: ApiRequest) -> Response[DatasetRecord]:
    """Read a version of a dataset, without its cases."""
    return json_response(await run_in_reader_thread(_datasets(request).find, dataset))


@get("/v1/datasets/{dataset:str}/cases", guards=[READERS], summary="List the cases of a dataset", tags=["datasets"])
async def list_dataset_cases(
    dataset: DatasetPath, request: ApiRequest, after: CaseCursor = 0, limit: Limit = 50
) -> Response[DatasetCases]:
    """List cases of a version in their order, references included."""

    def ask() -> bytes:
        datasets = _datasets(request)
        found = datasets.find(dataset)
        cases = [*datasets.cases(found, after=min(after, found.rows), limit=limit)]
        following = after + limit if after + limit < found.rows else None
        return msgspec.json.encode(DatasetCases(cases, following))

    return json_response(await asyncio.to_thread(ask))


@get("/v1/datasets/{dataset:str}/diff", guards=[READERS], summary="Compare two versions", tags=["datasets"])
async def compare_datasets(dataset: DatasetPath, request: ApiRequest, other: DatasetQuery) -> Response[DatasetDiff]:
    """List which cases were added, removed and changed from this version to another."""

    def ask() -> bytes:
        datasets = _datasets(request)
        return msgspec.json.encode(datasets.diff(datasets.find(dataset), datasets.find(other)))

    return json_response(await asyncio.to_thread(ask))
