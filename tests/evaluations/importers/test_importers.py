"""Every importer: its examples, files that the origins' current releases wrote, and damaged ones.

The files in files/ were written by the tools themselves in November 2026, paths of the machine removed: inspect-ai
0.3.285 with its mock model (one run with two epochs, one whose samples raised, one killed by os._exit in its fourth
sample, one as JSON), promptfoo 0.121.20 (echo, and a provider that fails), pydantic-evals 2.62.0, deepeval 4.3.1,
verifiers 0.4.0 (an endpoint of ours, one request refused, one scorer broken), arize-phoenix 20.26.1 (a task that fails
once; downloads of an experiment, spans of its client), evals 2.0.0 (a completion function of ours) and 3.0.1.post1 (an
endpoint of ours; graded by a model whose last answer is none of the choices; a run that died of its last sample). The
models of Harbor 0.24.0 wrote the trials of harbor/. The spans of otel_*.jsonl, as OTLP JSON and with fewer attributes:
opentelemetry-instrumentation-openai-v2 2.4b0 (with contents in events, in the event of an operation, on spans),
opentelemetry-instrumentation-openai and -anthropic 0.62.4 (the second beside what anthropic 2.10.0 writes itself),
openinference-instrumentation-openai 0.1.66, logfire 5.2.0, pydantic-ai 2.68.0, and evaluators of pydantic-evals
2.62.0. The models of langfuse 5.0.4 wrote langfuse_items.json and langfuse_observations.json, those of langfuse 3.15.0
langfuse_traces.json.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from meruit.errors import MeruitError
from meruit.evaluations.evaluation import CaseError
from meruit.evaluations.importers.support.pieces import ImportedCase, ImportNote
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, survey, with_claim
from meruit.registry import Importer, importers

FILES = Path(__file__).parent / "files"
Claims = Mapping[tuple[str, int], tuple[str | None, CaseError | None]]
ERROR = CaseError.ORIGIN_ERROR
EXPECTED: Mapping[str, Mapping[str, tuple[str | None, CaseError | None]]] = {
    "inspect_errors.eval": {
        "fr": ("pass", None),
        "no": ("fail", None),
        "pe": (None, ERROR),
        "ke": (None, ERROR),
        "jp": ("fail", None),
        "6": ("fail", None),
    },
    "inspect_killed.eval": {"fr": ("pass", None), "no": ("fail", None), "pe": ("pass", None)},
    "inspect.json": {
        "fr": ("pass", None),
        "no": ("fail", None),
        "pe": (None, ERROR),
        "ke": ("fail", None),
        "jp": ("fail", None),
        "6": ("fail", None),
    },
    "promptfoo.json": {"0": ("pass", None), "1": ("fail", None), "0/1": (None, ERROR), "1/1": (None, ERROR)},
    "pydantic_evals.json": {
        "france": ("pass", None),
        "norway": ("fail", None),
        "peru": (None, None),
        "kenya": (None, ERROR),
    },
    "verifiers.jsonl": {"0": ("pass", None), "1": ("fail", None), "2": (None, ERROR), "3": (None, ERROR)},
    "openai_evals.jsonl": {
        "toy.dev.0": ("pass", None),
        "toy.dev.1": ("fail", None),
        "toy.dev.2": ("fail", None),
    },
    "openai_evals_graded.jsonl": {
        "toy-mg.dev.0": ("pass", None),
        "toy-mg.dev.1": ("fail", None),
        # The grader's answer was none of the choices.
        "toy-mg.dev.2": (None, None),
    },
    "openai_evals_died.jsonl": {
        "toy-die.dev.1": ("pass", None),
        "toy-die.dev.2": ("pass", None),
        "toy-die.dev.3": ("fail", None),
    },
    "langfuse_items.json": {
        "i1": ("pass", None),
        "i2": ("fail", None),
        "i3": ("fail", None),
        # A remark and a correction are not verdicts.
        "i4": (None, None),
        "i5": (None, ERROR),
        "i6": ("pass", None),
    },
    "langfuse_observations.json": {"o1": (None, None), "o2": (None, ERROR)},
    "langfuse_traces.json": {
        "t1": ("pass", None),
        "t2": ("fail", None),
        "t3": (None, ERROR),
        "t4": (None, None),
    },
    "phoenix.json": {
        "RGF0YXNldEV4YW1wbGU6MQ==": ("pass", None),
        "RGF0YXNldEV4YW1wbGU6Mg==": ("fail", None),
        "RGF0YXNldEV4YW1wbGU6Mw==": (None, ERROR),
    },
    "phoenix_runs.csv": {
        "RGF0YXNldEV4YW1wbGU6MQ==": ("pass", None),
        "RGF0YXNldEV4YW1wbGU6Mg==": ("fail", None),
        "RGF0YXNldEV4YW1wbGU6Mw==": (None, ERROR),
    },
    "deepeval.json": {"fr": ("pass", None), "no": ("fail", None), "ke": (None, None)},
}


SPANS = [path.name for path in sorted(FILES.glob("otel_*.jsonl"))]


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """The one file, or the folder of several."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / next(iter(files)) if len(files) == 1 else folder


def claims_of(path: Path, importer: Importer) -> tuple[Claims, list[ImportNote]]:
    pieces = [*importer.read(ImportSource(path))]
    cases = [with_claim(one, importer.name) for one in pieces if isinstance(one, ImportedCase)]
    notes = [one for one in pieces if isinstance(one, ImportNote)]
    return {(case.id, case.repeat): (case.claimed, case.error) for case in cases}, notes


@pytest.mark.parametrize("importer", [*importers], ids=lambda one: one.name)
def test_the_examples_of_an_importer_are_true(importer: Importer, tmp_path: Path) -> None:
    assert importer.examples
    assert importer.summary.endswith(".")
    for number, example in enumerate(importer.examples):
        path = write(tmp_path / str(number), example.files)
        assert recognise(ImportSource(path)).name == importer.name
        found, notes = claims_of(path, importer)
        assert {case_id: claimed for (case_id, _), (claimed, _) in found.items()} == example.expect
        assert not notes


@pytest.mark.parametrize("name", EXPECTED)
def test_files_of_current_releases_keep_their_claims(name: str) -> None:
    source = ImportSource(FILES / name)
    importer = recognise(source)
    assert name.replace("_", "-").startswith(importer.name)
    found, _ = claims_of(FILES / name, importer)
    assert found == {(case_id, 0): claim for case_id, claim in EXPECTED[name].items()}


def test_a_log_with_epochs_has_the_accuracy_of_its_header() -> None:
    path = FILES / "inspect_epochs.eval"
    found, _ = claims_of(path, importers.get("inspect"))
    assert {repeat for _, repeat in found} == {0, 1}
    assert sum(claimed == "pass" for claimed, _ in found.values()) / len(found) == 0.5
    document = json.loads((FILES / "inspect.json").read_bytes())
    scored, _ = claims_of(FILES / "inspect.json", importers.get("inspect"))
    judged = [claimed for claimed, _ in scored.values() if claimed is not None]
    accuracy = document["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    assert judged.count("pass") / len(judged) == accuracy


def test_values_and_tokens_are_those_of_the_origin() -> None:
    pieces = importers.get("inspect").read(ImportSource(FILES / "inspect_epochs.eval"))
    case = next(with_claim(one, "inspect") for one in pieces if isinstance(one, ImportedCase) and one.case.id == "jp")
    # NaN is unscored.
    assert case.metadata["origin"]["scores"] == {"match": "C", "length": None}
    assert case.metadata["usage"] == {
        "input_tokens": 100,
        "cache_read_tokens": 50,
        "cache_write_tokens": 10,
        "output_tokens": 5,
    }
    assert (case.input, case.output) == ({"prompt": "Capital of Japan?", "reference": "Tokyo"}, {"text": "Tokyo"})
    assert [one["role"] for one in case.metadata["messages"]] == ["user", "assistant"]


def test_a_killed_run_says_what_is_missing() -> None:
    found = survey(ImportSource(FILES / "inspect_killed.eval"), importers.get("inspect"))
    assert (found.cases, found.planned, found.tags["origin_status"]) == (3, 6, "started")
    assert len(found.notes) == 2


def test_a_log_without_a_final_report_is_partial() -> None:
    for name in ("openai_evals.jsonl", "openai_evals_died.jsonl"):
        found = survey(ImportSource(FILES / name), importers.get("openai-evals"))
        assert found.is_partial == ("died" in name)


def damage(path: Path, importer: Importer, whole: Claims) -> None:
    """A damaged file gives an error with a code, or only claims that the whole one has."""
    try:
        found, notes = claims_of(path, importer)
    except MeruitError:
        return
    for key, claim in found.items():
        # A claim that was cut off is not a claim; it never becomes another one.
        assert claim in (whole.get(key), (None, None))
        assert key in whole
    assert len(found) == len(whole) or notes


@pytest.mark.parametrize("importer", [*importers], ids=lambda one: one.name)
def test_an_example_cut_at_any_byte_claims_nothing_new(importer: Importer, tmp_path: Path) -> None:
    (first, text), *others = importer.examples[0].files.items()
    whole, _ = claims_of(write(tmp_path / "whole", importer.examples[0].files), importer)
    content = text.encode()
    if importer.name == "rows":
        pytest.skip("a table that is cut at the end of a line is a shorter table")
    for cut in range(1, len(content) - 1):
        # A line of JSON that ends where the cut is leaves a shorter file that is whole.
        if content[:cut].endswith((b"}\n", b"}")) and first.endswith("jsonl"):
            continue
        path = write(tmp_path / "cut", {first: content[:cut], **dict(others)})
        damage(path, importer, whole)


@pytest.mark.parametrize("importer", [*importers], ids=lambda one: one.name)
def test_a_flipped_byte_never_makes_a_failure(importer: Importer, tmp_path: Path) -> None:
    """Unless the verdict itself was flipped, which no reader of plain text can tell."""
    (first, text), *others = importer.examples[0].files.items()
    whole, _ = claims_of(write(tmp_path / "whole", importer.examples[0].files), importer)
    content = text.encode()
    for place in range(0, len(content), 2):
        flipped = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
        try:
            found, _ = claims_of(write(tmp_path / "flipped", {first: flipped, **dict(others)}), importer)
        except MeruitError:
            continue
        for key in found.keys() & whole.keys():
            assert found[key][0] != "fail" or whole[key][0] == "fail", (place, content[place : place + 20])


# A table that is cut at the end of a line is a shorter table.
@pytest.mark.parametrize("name", [*(name for name in EXPECTED if not name.endswith(".csv")), *SPANS])
def test_a_file_cut_or_flipped_anywhere_claims_nothing_new(name: str, tmp_path: Path) -> None:
    content = (FILES / name).read_bytes()
    importer = recognise(ImportSource(FILES / name))
    whole, _ = claims_of(FILES / name, importer)
    chance = random.Random(name)
    for cut in chance.sample(range(1, len(content) - 1), 25):
        damage(write(tmp_path, {name: content[:cut]}), importer, whole)
    if name.endswith(".eval"):
        for place in chance.sample(range(len(content)), 25):
            flipped = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
            damage(write(tmp_path, {name: flipped}), importer, whole)


@pytest.mark.parametrize("importer", [*importers], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"a":' * 5_000, b"\xff\xfe\x00", b"PK\x03\x04", b'"' * 1_000,
     b'{"id": 1' + b"0" * 5_000 + b"}", b'[{"id": NaN}]'],
    ids=range(11),
)  # fmt: skip
def test_hostile_files_are_refused_with_a_code(importer: Importer, content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, {"file.json": content})
    try:
        found = survey(ImportSource(path), importer)
    except MeruitError:
        return
    assert not found.claimed
