"""embedding_similarity against a server that speaks the protocol, and lies in the ways that real ones do."""

import json
import math
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.app import build_engine
from meruit.config import Settings
from meruit.errors import ConfigError, MeruitError
from meruit.metrics.embedding_similarity import EmbeddingExtractor, cosine, decode_vector, encode_vector
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault, Provenance
from meruit.model.verdict import CriterionResult, Status, Verdict
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEY = "sk-a-secret-of-the-test"


def letters_of(text: str) -> list[float]:
    """How often each letter occurs; the direction of a text, as far as this server knows."""
    return [float(text.casefold().count(letter)) for letter in LETTERS]


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /MODE/v1/embeddings` as MODE says."""

    server: "Server"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({**asked, "authorization": self.headers.get("Authorization")})
        mode, _, path = self.path.strip("/").partition("/")
        if path != "v1/embeddings":
            return self.answer(404, {"error": {"message": "no such path"}})
        vectors = [letters_of(text)[: asked.get("dimensions", 26)] for text in asked["input"]]
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
        ]
        return self.lie(mode, data)

    def lie(self, mode: str, data: list[dict[str, Any]]) -> None:  # noqa: PLR0911, PLR0912, C901 - one for each lie
        match mode:
            case "limited":
                return self.answer(429, {"error": {"message": "Rate limit reached"}})
            case "once" if len(self.server.asked) == 1:
                return self.answer(500, {"error": {"message": "The server had an error"}})
            case "broken":
                return self.answer(500, {"error": {"message": f"it failed for {KEY}"}})
            case "refused":
                return self.answer(400, {"error": {"message": "maximum context length is 8192 tokens"}})
            case "denied":
                return self.answer(401, {"error": {"message": "Incorrect API key"}})
            case "shuffled":
                data.reverse()
            case "unnumbered":
                for one in data:
                    del one["index"]
            case "misnumbered":
                data[0]["index"] = 7
            case "short":
                data.pop()
            case "ragged":
                data[0]["embedding"].append(1.0)
            case "empty":
                data = [{**one, "embedding": []} for one in data]
            case "zero":
                data[0]["embedding"] = [0.0] * 26
            case "words":
                data[0]["embedding"] = ["a"] * 26
            case "nan":
                return self.send(200, json.dumps({"data": data}).replace("0.0", "NaN").encode())
            case "large":
                data[0]["embedding"][0] = 1e300
            case "list":
                return self.send(200, json.dumps(data).encode())
            case "html":
                return self.send(200, b"<html><title>Sign in</title></html>")
            case _:
                pass
        return self.answer(200, {"object": "list", "data": data, "model": "letters", "usage": {"prompt_tokens": 3}})

    def answer(self, status: int, body: object) -> None:
        self.send(status, json.dumps(body).encode())

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A server of vectors, and what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []

    def url(self, mode: str = "honest") -> str:
        return f"http://127.0.0.1:{self.server_port}/{mode}/v1"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(running: Server) -> Server:
    running.asked.clear()
    return running


def engine_at(url: str, **config: Any) -> VerificationEngine:
    entry = {"class": "EmbeddingExtractor", "config": {"base_url": url, "model": "letters", "retries": 0, **config}}
    return build_engine(Settings.model_validate({"extractors": {"embedding": entry}}))


def engine_of(server: Server, mode: str = "honest", **config: Any) -> VerificationEngine:
    return engine_at(server.url(mode), **config)


def criteria_of(threshold: float) -> SuccessCriteria:
    criterion = {"metric": "embedding_similarity", "metric_type": "percentage", "comparison": "gte"}
    return SuccessCriteria.model_validate({"criteria": [{**criterion, "threshold": threshold}]})


def judged(engine: VerificationEngine, text: object, **given: Any) -> CriterionResult:
    (one,) = engine.verify_sync("c", given, {"text": text}, criteria_of(0.8)).criterion_results
    return one


def test_a_text_is_compared_with_the_nearest_reference(server: Server) -> None:
    one = judged(engine_of(server), "abc", references=["xyz", "abb"])
    assert isinstance(one.value, float)
    assert math.isclose(one.value, 3 / math.sqrt(3 * 5))
    assert (one.status, one.provenance) == (Status.NOT_MET, Provenance.PROVIDER)
    assert one.details is not None
    assert one.details["nearest"] == 1


def test_the_same_text_is_alike_without_remainder(server: Server) -> None:
    one = judged(engine_of(server), " the capital ", reference="the capital")
    assert (one.value, one.status) == (1.0, Status.MET)
    assert [asked["input"] for asked in server.asked] == [["the capital"]]


def test_the_recorded_vectors_give_the_similarity_again(server: Server) -> None:
    one = judged(engine_of(server), "capital", reference="a capital")
    assert one.details is not None
    vectors = one.details["vectors"]
    again = cosine(decode_vector(vectors["output"]), decode_vector(vectors["references"][0]))
    assert again == one.value == one.details["cosine"]


def test_a_request_is_what_the_protocol_says(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", KEY)
    judged(engine_of(server, key_variable="EMBEDDING_KEY", dimensions=12), "abc", reference="abd")
    assert server.asked == [
        {
            "model": "letters",
            "input": ["abc", "abd"],
            "encoding_format": "float",
            "dimensions": 12,
            "authorization": f"Bearer {KEY}",
        }
    ]


@pytest.mark.parametrize("mode", ["shuffled", "unnumbered"])
def test_vectors_in_any_order_are_understood(server: Server, mode: str) -> None:
    one = judged(engine_of(server, mode), "abc", reference="abb")
    assert one.details is not None
    assert decode_vector(one.details["vectors"]["output"]) == letters_of("abc")


@pytest.mark.parametrize(
    "mode",
    [
        *("limited", "broken", "refused", "denied", "misnumbered", "short", "ragged", "empty", "zero", "words", "nan"),
        *("large", "list", "html"),
    ],
)
def test_an_error_of_the_endpoint_is_never_a_failure(
    server: Server, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", KEY)
    engine = engine_of(server, mode, key_variable="EMBEDDING_KEY")
    result = engine.verify_sync("c", {"reference": "abd"}, {"text": "abc"}, criteria_of(0.8))
    (one,) = result.criterion_results
    assert (result.verdict, one.status, one.cause) == (
        Verdict.INCONCLUSIVE,
        Status.INDETERMINATE,
        Cause.EXTRACTOR_ERROR,
    )
    assert one.fault is Fault.SYSTEM
    assert one.error is not None
    assert KEY not in one.error


def test_a_server_that_is_down_is_no_failure() -> None:
    with Server() as gone:
        url = gone.url()
    one = judged(engine_at(url, timeout_s=1), "a", reference="b")
    assert (one.status, one.fault) == (Status.INDETERMINATE, Fault.SYSTEM)


def test_an_error_that_passes_is_tried_again(server: Server) -> None:
    assert judged(engine_of(server, "once", retries=1), "abc", reference="abc").status is Status.MET
    assert len(server.asked) == 2


def test_a_key_that_is_not_set_is_the_systems_fault(server: Server) -> None:
    one = judged(engine_of(server, key_variable="NOT_SET_ANYWHERE"), "abc", reference="abc")
    assert (one.status, one.fault) == (Status.INDETERMINATE, Fault.SYSTEM)
    assert server.asked == []


@pytest.mark.parametrize(
    ("text", "given_input", "fault"),
    [
        (None, {"reference": "b"}, Fault.AGENT),
        ({"a": 1}, {"reference": "b"}, Fault.AGENT),
        ("a", {}, Fault.AUTHOR),
        ("a", {"reference": ""}, Fault.AUTHOR),
        ("a", {"references": [f"r{number}" for number in range(65)]}, Fault.SYSTEM),
    ],
)
def test_work_that_cannot_be_compared_asks_nothing(
    server: Server, text: object, given_input: dict[str, Any], fault: Fault
) -> None:
    one = judged(engine_of(server), text, **given_input)
    assert (one.status, one.fault) == (Status.INDETERMINATE, fault)
    assert server.asked == []


def test_an_empty_text_is_like_nothing(server: Server) -> None:
    assert judged(engine_of(server), " \n", reference="b").value == 0.0
    assert server.asked == []


def test_rescoring_asks_nothing_again(server: Server, tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path / "records"))
    engine = engine_of(server)
    registrar = Registrar(engine, store)
    work = Submission({"reference": "abb"}, {"text": "abc"}, {})
    registrar.record_sync("default", registrar.judge_sync(registrar.compile(criteria_of(0.8)), work))
    asked = len(server.asked)
    summary = rescore(
        store,
        engine,
        "default",
        criteria_of(0.7),
        narrowed=None,
        reason="a lower threshold",
        runner=LocalRunner(),
        now=datetime(2026, 7, 1, tzinfo=UTC),
        progress=lambda _done, _total: None,
    )
    assert (summary.from_evidence, summary.measured, summary.success_gained) == (1, 0, 1)
    assert len(server.asked) == asked == 1
    store.close()


def test_without_settings_the_metric_says_what_to_set() -> None:
    (one,) = build_engine(Settings()).verify_sync("c", {}, {"text": "a"}, criteria_of(0.8)).criterion_results
    assert (one.cause, one.fault) == (Cause.METRIC_DISABLED, Fault.SYSTEM)
    assert one.error is not None
    assert "EmbeddingExtractor" in one.error


@pytest.mark.parametrize(
    "config",
    [
        {"base_url": "ftp://host", "model": "m"},
        {"base_url": "http://user:secret@host", "model": "m"},
        {"base_url": "http://host", "model": ""},
        {"base_url": "http://host", "model": "m", "timeout_s": 51},
        {"base_url": "http://host", "model": "m", "retries": 11},
        {"base_url": "http://host", "model": "m", "dimensions": 0},
        {"base_url": "http://host"},
        {"base_url": "http://host", "model": "m", "api_key": "sk-1"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(config: dict[str, Any]) -> None:
    entry = {"class": "EmbeddingExtractor", "config": config}
    with pytest.raises(ConfigError) as refused:
        build_engine(Settings.model_validate({"extractors": {"embedding": entry}}))
    assert [one.where for one in refused.value.problems] == ["extractors.embedding.config"]
    assert isinstance(refused.value, MeruitError)


def test_another_model_or_server_is_another_version() -> None:
    several = [("http://a", "m", None), ("http://b", "m", None), ("http://a", "n", None), ("http://a", "m", 3)]
    versions = {EmbeddingExtractor(url, model, dimensions=size).version for url, model, size in several}
    assert len(versions) == len(several)
    assert EmbeddingExtractor("http://a/", "m").version == EmbeddingExtractor("http://a", "m").version


numbers = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda number: number == 0 or abs(number) > 1e-30)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30))
def test_a_cosine_is_symmetric_and_within_one(pairs: list[tuple[float, float]]) -> None:
    first, second = ([*side] for side in zip(*pairs, strict=True))
    if not any(first) or not any(second):
        return
    assert -1 <= cosine(first, second) == cosine(second, first) <= 1
    assert cosine(first, first) == 1.0
    assert cosine(first, [-number for number in first]) == -1.0
    assert decode_vector(encode_vector(first)) == first
