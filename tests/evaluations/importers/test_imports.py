"""An import is an evaluation by its origin's claims, or by our criteria beside them; the same file is imported once."""

import io
import runpy
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from tests.evaluations.conftest import CRITERIA
from tests.evaluations.importers.test_importers import FILES, write

from meruit.errors import EvaluationConflict, ImportDamaged, ImportFormatUnknown, ImportWithoutClaims, UnknownName
from meruit.evaluations.importers.support.json_stream import CUT, split_document
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.zip_reader import ZipEntry, list_entries, read_entry
from meruit.evaluations.imports import ImportResult, import_source, recognise
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.service import Evaluator
from meruit.model.evidence import Provenance
from meruit.model.verdict import Verdict
from meruit.outcomes.service import Registrar
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine


@pytest.fixture
def evaluator(shared: Store, tenant: str) -> Evaluator:
    return Evaluator(Registrar(VerificationEngine(), shared), tenant)


@pytest.fixture
def reader(shared: Store, tenant: str) -> Evaluations:
    return Evaluations(shared, tenant)


def import_file(evaluator: Evaluator, path: Path, **more: object) -> ImportResult:
    source = ImportSource(path)
    return import_source(evaluator, source, recognise(source), name="one", **more)  # type: ignore[arg-type]


def test_without_criteria_the_claims_are_the_verdicts(evaluator: Evaluator, reader: Evaluations) -> None:
    done = import_file(evaluator, FILES / "promptfoo.json").evaluation
    cases = {case.case_id: case for case in reader.cases(done)}
    assert {name: case.verdict for name, case in cases.items()} == {
        "0": Verdict.PASS,
        "1": Verdict.FAIL,
        "0/1": Verdict.INCONCLUSIVE,
        "1/1": Verdict.INCONCLUSIVE,
    }
    assert [case.claimed for case in cases.values() if case.claimed] == ["pass", "fail"]
    assert reader.criteria(done).ids == ("claimed", "claimed equals", "claimed letters")
    for detail in reader.details(done):
        if detail.result is not None:
            assert {one.provenance for one in detail.result.criterion_results} <= {Provenance.CLAIMED, None}
    summary = reader.summary(done)
    assert (summary.overall.passed, summary.overall.failed, summary.overall.open) == (1, 1, 2)
    assert (summary.errors, summary.disputed) == ({"origin_error": 2}, 0)


def test_with_criteria_our_verdict_stands_beside_the_claim(evaluator: Evaluator, reader: Evaluations) -> None:
    criteria = evaluator.compile(CRITERIA)
    done = import_file(evaluator, FILES / "pydantic_evals.json", criteria=criteria).evaluation
    found = {case.case_id: (case.claimed, case.verdict) for case in reader.cases(done)}
    # The grader of peru broke at its origin; the work itself can be judged.
    assert found["peru"] == (None, Verdict.PASS)
    assert found["norway"][0] == "fail"
    assert found["kenya"] == (None, Verdict.INCONCLUSIVE)


def test_a_log_of_crashed_samples_is_inconclusive(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    text = (
        '{"evalId": "e", "results": {"prompts": [], "results": ['
        + ",".join(f'{{"testIdx": {n}, "success": false, "failureReason": 2, "error": "429"}}' for n in range(20))
        + "]}}"
    )
    done = import_file(evaluator, write(tmp_path, {"r.json": text})).evaluation
    overall = reader.summary(done).overall
    assert (overall.failed, overall.open, overall.rate) == (0, 20, None)


def test_the_same_file_is_imported_once(evaluator: Evaluator, reader: Evaluations) -> None:
    first = import_file(evaluator, FILES / "deepeval.json")
    again = import_file(evaluator, FILES / "deepeval.json")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.evaluation == first.evaluation
    assert len(reader.page()) == 1
    with pytest.raises(EvaluationConflict):
        import_file(evaluator, FILES / "promptfoo.json")


def test_a_folder_is_imported_once_and_changes_show(evaluator: Evaluator, tmp_path: Path) -> None:
    trial = '{"task_name": "t", "trial_name": "t__%d", "verifier_result": {"rewards": {"reward": %s}}}'
    folder = write(tmp_path, {"a/result.json": trial % (1, "1.0"), "b/result.json": trial % (2, "0.0")})
    first = import_file(evaluator, folder)
    assert (first.survey.format, first.evaluation.cases) == ("harbor", 2)
    assert not import_file(evaluator, folder).is_new
    write(tmp_path, {"c/result.json": trial % (3, "0.5"), "d.json": ""})
    with pytest.raises(EvaluationConflict):
        import_file(evaluator, folder)


def test_a_number_is_a_pass_from_the_pass_score_on(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    rows = "".join(
        f'{{"example_id": {n}, "prompt": "?", "completion": "a", "reward": {reward}}}\n'
        for n, reward in enumerate(("0.0", "0.6", "1.0", "1.5", "NaN"))
    )
    path = write(tmp_path, {"results.jsonl": rows})
    strict = import_file(evaluator, path)
    assert [case.claimed for case in reader.cases(strict.evaluation)] == ["fail", "fail", "pass", None, None]
    assert (strict.survey.between, strict.survey.claimed) == (1, 3)
    source = ImportSource(path)
    lenient = import_source(evaluator, source, recognise(source), name="two", pass_score=0.5)
    assert [case.claimed for case in reader.cases(lenient.evaluation)] == ["fail", "pass", "pass", None, None]


def test_an_import_that_was_stopped_goes_on_as_it_was_begun(
    evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f'{{"example_id": {n}, "prompt": "?", "completion": "a", "reward": 0.6}}\n' for n in range(3))
    path = write(tmp_path, {"results.jsonl": rows})

    def stop(_self: Evaluator, _evaluation: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            import_file(evaluator, path)
    with pytest.raises(EvaluationConflict):
        import_file(evaluator, path, pass_score=0.5)
    assert import_file(evaluator, path).evaluation.cases == 3


def test_a_repeated_id_is_another_try(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    row = '{"example_id": 7, "prompt": "?", "completion": "a", "reward": 1.0}\n'
    done = import_file(evaluator, write(tmp_path, {"results.jsonl": row * 3})).evaluation
    assert [(case.case_id, case.repeat) for case in reader.cases(done)] == [("7", 0), ("7", 1), ("7", 2)]


def test_rows_without_claims_need_criteria(evaluator: Evaluator, tmp_path: Path) -> None:
    path = write(tmp_path, {"rows.csv": "id,prompt,output,reference\na,?,yes,yes\n"})
    with pytest.raises(ImportWithoutClaims):
        import_file(evaluator, path)
    assert import_file(evaluator, path, criteria=evaluator.compile(CRITERIA)).is_new


def test_an_unknown_format_names_those_that_are_known(tmp_path: Path) -> None:
    source = ImportSource(write(tmp_path, {"note.txt": "hello"}))
    with pytest.raises(ImportFormatUnknown, match="promptfoo"):
        recognise(source)
    with pytest.raises(UnknownName, match="inspect"):
        recognise(source, "inpsect")
    with pytest.raises(ImportFormatUnknown):
        recognise(ImportSource(tmp_path))


def packed(name: str, content: bytes, size: int | None = None) -> bytes:
    """An archive of one entry in Zstandard, without a directory."""
    body = zstandard.compress(content)
    head = struct.pack(
        "<4sHHHHHIIIHH",
        b"PK\x03\x04",
        63,
        0,
        93,
        0,
        0,
        zlib.crc32(content),
        len(body),
        size or len(content),
        len(name),
        0,
    )
    return head + name.encode() + body


def test_entries_that_lie_about_themselves_are_refused() -> None:
    bomb = io.BytesIO(packed("../../etc/header.json", bytes(10_000_000), size=10))
    archive = list_entries(bomb)
    assert not archive.is_whole
    with pytest.raises(ImportDamaged):
        read_entry(bomb, archive.entries["../../etc/header.json"])
    with pytest.raises(ImportDamaged):
        read_entry(bomb, ZipEntry("gone", 5, 1, 1, 8, 0))
    with pytest.raises(ImportDamaged):
        read_entry(bomb, ZipEntry("large", 0, 1, 2**40, 8, 0))
    for method in (8, 12, 93):
        with pytest.raises(ImportDamaged):
            read_entry(bomb, ZipEntry("other", 0, 9, 9, method, 0))


def test_deflated_logs_are_read_too(evaluator: Evaluator, tmp_path: Path) -> None:
    header = b'{"version": 2, "status": "success", "eval": {"task": "t", "dataset": {"samples": 1}}}'
    with zipfile.ZipFile(tmp_path / "old.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", header)
        archive.writestr("samples/a_epoch_1.json", b'{"id": "a", "input": "?", "scores": {"s": {"value": "C"}}}')
    assert import_file(evaluator, tmp_path / "old.eval").survey.claimed == 1


def test_journal_only_logs_are_read(evaluator: Evaluator, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "crashed.eval", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("_journal/start.json", b'{"version": 2, "eval": {"task": "t", "dataset": {"samples": 9}}}')
        archive.writestr(
            "_journal/summaries/1.json",
            b'[{"id": "a", "epoch": 1, "input": "?", "scores": {"s": {"value": "I"}}},'
            b' {"id": "b", "epoch": 1, "input": "?", "error": "died"}]',
        )
    found = import_file(evaluator, tmp_path / "crashed.eval").survey
    assert (found.cases, found.claimed, found.errors, found.planned) == (2, 1, 1, 9)


def test_a_document_is_split_without_holding_it() -> None:
    text = b'{"a": {"list": [1, {"x": "],}\\""}, [2, 3]]}, "list": [9], "b": "a.list"}'
    found = [*split_document(io.BytesIO(text), {"a.list"})]
    assert found == [
        ("a.list", b"1"),
        ("a.list", b'{"x": "],}\\""}'),
        ("a.list", b"[2, 3]"),
        ("", b'{"a": {"list": []}, "list": [9], "b": "a.list"}'),
    ]
    assert [*split_document(io.BytesIO(text[:30]), {"a.list"})] == [("a.list", b"1"), (CUT, b"")]


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"result.json": '{"task_name": "t", "trial_name": "x"}'})
    (tmp_path / "job" / "t1").mkdir(parents=True)
    (tmp_path / "job" / "t1" / "result.json").symlink_to(outside)
    with pytest.raises(ImportFormatUnknown):
        recognise(ImportSource(tmp_path / "job"))
    shutil.copy(outside, tmp_path / "job" / "result.json")
    assert recognise(ImportSource(tmp_path / "job")).name == "harbor"


def test_the_example_logs_are_what_their_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[3] / "examples" / "evaluations"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(folder / "make_logs.py"), run_name="__main__")
    for name in ("inspect.json", "promptfoo.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
