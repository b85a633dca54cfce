"""Criteria and work loaded from files."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from meruit.errors import CriteriaError, DocumentError
from meruit.judge.plan import Trait, compile_plan
from meruit.model.criterion import SuccessCriteria
from meruit.model.limits import MAX_CODE_BYTES
from meruit.verify.load import load_criteria, load_payload

WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


CODE = "def metric(input, output, metadata):\n    return {'mine': 1}\n"


def beside(folder: Path, code_file: object) -> Path:
    """A criteria file in the folder whose metric's code is in another file."""
    asked = {**WORDS, "metric": "mine"}
    file = folder / "criteria.json"
    whole = {"criteria": [asked], "custom_metrics": [{"metrics": ["mine"], "code_file": code_file}]}
    file.write_text(json.dumps({"success_criteria": whole}, indent=1))
    return file


def code_refused(folder: Path, code_file: object) -> str:
    with pytest.raises(CriteriaError) as refused:
        load_criteria(beside(folder, code_file))
    (problem,) = refused.value.problems
    assert (problem.where, problem.line) == ("success_criteria.custom_metrics[0].code_file", 16)
    return problem.message


def test_code_is_read_from_a_file_beside_the_criteria(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "mine.py").write_text(f"\ufeff{CODE}")
    for name in ("mine.py", "./mine.py", "deeper/mine.py", "deeper/../mine.py", str(tmp_path / "mine.py")):
        assert load_criteria(beside(tmp_path, name)).custom_metrics[0].code == CODE
    monkeypatch.chdir(tmp_path)
    assert load_criteria("criteria.json").custom_metrics[0].code == CODE


def test_a_digest_covers_the_code_in_whichever_file(tmp_path: Path) -> None:
    def digest(criteria: SuccessCriteria) -> str:
        return compile_plan(criteria, lambda _name: Trait()).digest

    (tmp_path / "mine.py").write_text(CODE)
    read = load_criteria(beside(tmp_path, "mine.py"))
    whole = read.model_dump(mode="json", exclude_defaults=True)
    assert whole["custom_metrics"] == [{"metrics": ["mine"], "code": CODE}]
    assert digest(SuccessCriteria.model_validate(whole)) == digest(read)
    (tmp_path / "mine.py").write_text(CODE + "#")
    assert digest(load_criteria(beside(tmp_path, "mine.py"))) != digest(read)


def test_criteria_read_nothing_outside_their_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    (home / "link").symlink_to(secret)
    (home / "way_out").symlink_to(tmp_path)
    for name in ("../secret", str(secret), "link", "way_out/secret", "/etc/passwd", "/dev/zero"):
        message = code_refused(home, name)
        assert (repr(name) in message, "sesame" in message) == (True, False)


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "link").symlink_to("mine.py")
    assert load_criteria(beside(tmp_path, "link")).custom_metrics[0].code == CODE


def test_a_code_file_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# \xe9")
    (tmp_path / "large").write_bytes(b"#" * (MAX_CODE_BYTES + 1))
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("gone.py", "loop", "a\0b", "x" * 5_000, ".", "pipe", "latin", "large"):
        assert repr(name) in code_refused(tmp_path, name)
    assert "UTF-8" in code_refused(tmp_path, "latin")
    assert "256 KiB" in code_refused(tmp_path, "large")
    assert "number 7" in code_refused(tmp_path, 7)


def test_an_empty_code_file_is_refused_on_the_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("\n")
    with pytest.raises(CriteriaError) as refused:
        load_criteria(beside(tmp_path, "empty.py"))
    (problem,) = refused.value.problems
    assert (problem.where, problem.line) == ("success_criteria.custom_metrics[0].code", 16)


def test_criteria_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "criteria.yaml"
    file.write_text("criteria: [{metric: word_count, metric_type: count, comparison: gte, threshold: 2}]")
    assert load_criteria(file).criteria[0].threshold == 2
    with pytest.raises(CriteriaError, match="Unknown metric: word_count"):
        load_criteria(str(file), known_metrics=["words"])


def test_a_payload_keeps_every_digit(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"id": 123456789012345678901234567890, "deep": [{"x": 0.1}], "name": "né"}', "utf-8")
    assert load_payload(file) == {
        "id": 123456789012345678901234567890,
        "deep": [{"x": 0.1}],
        "name": "né",
    }


def test_a_deep_payload_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    for depth in (900, 1_000, 1_020, 1_023, 1_024, 2_000):
        file.write_text(f'{{"a": {"[" * depth}{"]" * depth}}}')
        with suppress(DocumentError):
            load_payload(file)


@pytest.mark.parametrize("text", ["", "[1]", '"text"', "7", "null", "true", '{"a": 1, "a": 2}', "{", '{"a": NaN}'])
def test_anything_but_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "payload.json"
    file.write_text(text)
    with pytest.raises(DocumentError) as refused:
        load_payload(file)
    assert (refused.value.name, len(refused.value.problems)) == (str(file), 1)
