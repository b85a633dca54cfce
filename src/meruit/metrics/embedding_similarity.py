"""How alike in meaning a text and its references are, by the vectors of an OpenAI-compatible endpoint.

It asks another system, so it is an extractor that the settings name, with the address. What the endpoint said is
recorded with the result: the similarity can be computed again, and rescoring asks nothing.
"""

import asyncio
import base64
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.errors import AuthorError, MeruitError, SourceError
from meruit.metrics.support.extractor import MetricExtractor
from meruit.metrics.support.reference import reference_reader, text_at
from meruit.model.canonical import digest
from meruit.model.decoding import decode_json
from meruit.model.evidence import Cause, Fault, Measured, Missing, Provenance
from meruit.model.work import Work
from meruit.registry import Ask

if TYPE_CHECKING:
    from meruit.sources.http import HttpClient, HttpResponse

METRIC = "embedding_similarity"
SUMMARY = "likeness in meaning of `output.text` and its nearest reference, by an endpoint that the settings name"
PATH = "/embeddings"
MAX_REFERENCES = 64
"""References of one case: the vector of each is recorded."""
MAX_DIMENSIONS = 65_536
MAX_TIMEOUT_S = 50.0
"""Less than the engine waits for an extractor, so that the message is that of the endpoint."""
FIRST_WAIT_S = 0.5
_OK = range(200, 300)

Vector = Sequence[float]


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int | None = None
    """Some servers leave it out, and answer in order."""


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class EmbeddingExtractor(MetricExtractor):
    """Extract `embedding_similarity`: cosine of the vectors of `output.text` and the nearest reference, from 0 to 1."""

    provenance = Provenance.PROVIDER

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key_variable: str | None = None,
        dimensions: int | None = None,
        timeout_s: float = 20.0,
        retries: int = 2,
    ) -> None:
        """`base_url` ends before `/embeddings`; `key_variable` names the environment variable that holds the key."""
        # Whatever speaks HTTP takes a moment to load.
        from meruit.sources.http import check_base_url

        try:
            self._url = check_base_url(base_url).rstrip("/") + PATH
        except AuthorError as problem:
            raise MeruitError(f"base_url cannot be used: {problem}") from None
        if not model:
            raise MeruitError("model is the name of a model, as text-embedding-3-small")
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise MeruitError(f"timeout_s is a number of seconds up to {MAX_TIMEOUT_S:g}, not {timeout_s}")
        if not 0 <= retries <= 10:
            raise MeruitError(f"retries are 0 to 10, not {retries}")
        if dimensions is not None and not 0 < dimensions <= MAX_DIMENSIONS:
            raise MeruitError(f"dimensions are 1 to {MAX_DIMENSIONS}, not {dimensions}")
        self._model, self._dimensions = model, dimensions
        self._key_variable = key_variable
        self._timeout_s, self._retries = timeout_s, retries
        # Another server may have other vectors under the same name.
        self.version = digest(["1", self._url, model, dimensions])
        self._references = reference_reader(Ask(), str.strip)

    def supported_metrics(self) -> list[str]:
        """Its one metric."""
        return [METRIC]

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> dict[str, Measured | Missing]:
        """The similarity, with the vectors; where the endpoint fails, the agent is not at fault."""
        work = Work(input=task_input, output=task_output, metadata=metadata)
        references = self._references(work)
        if isinstance(references, Missing):
            return {METRIC: references}
        text = text_at(work, ("text",))
        if isinstance(text, Missing):
            return {METRIC: text}
        if len(references) > MAX_REFERENCES:
            why = f"there are {len(references)} references; at most {MAX_REFERENCES} are compared"
            return {METRIC: Missing(why, Cause.TOO_COSTLY, Fault.SYSTEM)}
        if not text.strip():
            # Endpoints refuse an empty text, and it means nothing.
            return {METRIC: Measured(0.0, {"message": "the text is empty"})}
        texts = [*dict.fromkeys([text.strip(), *references])]
        try:
            async with asyncio.timeout(MAX_TIMEOUT_S):
                vectors = dict(zip(texts, await self._embed(texts), strict=True))
        except (SourceError, TimeoutError) as problem:
            why = str(problem) or f"{self._url} did not answer within {MAX_TIMEOUT_S:g} s; check that it is up"
            return {METRIC: Missing(why, Cause.EXTRACTOR_ERROR, Fault.SYSTEM)}
        return {METRIC: self._measure(vectors, text.strip(), references)}

    def _measure(self, vectors: Mapping[str, Vector], text: str, references: Sequence[str]) -> Measured:
        cosines = [cosine(vectors[text], vectors[reference]) for reference in references]
        best = max(cosines)
        details = {
            "model": self._model,
            "cosine": best,
            "nearest": cosines.index(best),
            "vectors": {
                "encoding": "base64 of little-endian float32",
                "output": encode_vector(vectors[text]),
                "references": [encode_vector(vectors[reference]) for reference in references],
            },
        }
        # Opposite meaning counts as none: a share is never negative.
        return Measured(max(0.0, best), details)

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for each text; raises SourceError for an answer that is not that."""
        body: dict[str, Any] = {"model": self._model, "input": [*texts], "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions

        async def read(response: "HttpResponse") -> list[Vector]:
            return await _read_vectors(response, len(texts))

        return await self._client().request(
            "POST", self._url, read, headers={"Content-Type": "application/json"}, content=msgspec.json.encode(body)
        )

    def _client(self) -> "HttpClient":
        """A client for one request: it belongs to the current event loop."""
        from meruit.sources.credentials import SecretToken
        from meruit.sources.http import HttpClient
        from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy

        name = self._key_variable
        return HttpClient(
            token=None if name is None else SecretToken.from_environment(name, os.environ),
            policy=ReadPolicy(
                retry=BackoffSchedule(tries=self._retries + 1, first_wait_s=FIRST_WAIT_S),
                limits=ReadLimits(timeout_s=self._timeout_s),
            ),
        )


async def _read_vectors(response: "HttpResponse", count: int) -> list[Vector]:
    from meruit.sources.http_replies import check_status, invalid_json_error, quote_of

    if response.status not in _OK:
        refused = await response.read_start()
        check_status(refused)
        raise SourceError(f"{refused.where} answered with status {refused.status}{quote_of(refused)}; check the model")
    reply = await response.read()
    try:
        found = decode_json(reply.content, _Embeddings).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise invalid_json_error(reply, problem) from None
    wrong = _find_problem(found, count)
    if wrong is not None:
        raise SourceError(f"{reply.where} {wrong}; check that the model makes embeddings")
    return [one.embedding for one in sorted(found, key=lambda one: one.index or 0)]


def _find_problem(found: Sequence[_Embedding], count: int) -> str | None:
    """What is wrong with the vectors of an answer; None where nothing is."""
    if len(found) != count:
        return f"sent {len(found)} vectors for {count} texts"
    indices = [one.index for one in found]
    if any(index is not None for index in indices) and sorted(-1 if one is None else one for one in indices) != [
        *range(count)
    ]:
        return "numbered its vectors wrongly"
    sizes = {len(one.embedding) for one in found}
    if len(sizes) > 1:
        return f"sent vectors of {' and '.join(map(str, sorted(sizes)))} dimensions in one answer"
    if not 0 < sizes.pop() <= MAX_DIMENSIONS:
        return "sent vectors without a number, or with too many"
    for one in found:
        if not any(one.embedding) or not all(map(_is_float32, one.embedding)):
            return "sent a vector that is zero, or not of finite numbers"
    return None


def _is_float32(number: float) -> bool:
    return abs(number) <= 3.4e38


def cosine(first: Vector, second: Vector) -> float:
    """The cosine of the angle between two vectors, exact to the last bits and never beyond 1."""
    products = (math.fsum(a * b for a, b in zip(one, other, strict=True)) for one, other in _pairs(first, second))
    dot, length, other_length = products
    return max(-1.0, min(1.0, dot / math.sqrt(length * other_length)))


def _pairs(first: Vector, second: Vector) -> tuple[tuple[Vector, Vector], ...]:
    # Scaled first: squares of large or small numbers would leave the range of floats.
    one, other = _scale(first), _scale(second)
    return (one, other), (one, one), (other, other)


def _scale(vector: Vector) -> Vector:
    largest = max(map(abs, vector))
    return [number / largest for number in vector]


def encode_vector(vector: Vector) -> str:
    """A vector as a record keeps it: in a quarter of the space of its decimals."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def decode_vector(written: str) -> list[float]:
    """The vector that a record holds."""
    content = base64.b64decode(written, validate=True)
    return [*struct.unpack(f"<{len(content) // 4}f", content)]
