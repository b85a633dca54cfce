"""`meruit review` and `meruit judge`: a queue is made, labelled, calibrated and used."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.review.conftest import evaluate, number_of, truth_of

from meruit.cli import meruit
from meruit.errors import InvalidCase
from meruit.store.location import Location
from meruit.store.store import Store

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reviewed")
    store = Store.open(Location(made))
    evaluate(store, "first", "default")
    evaluate(store, "second", "default", wrong_every=7)
    store.close()
    return made


@pytest.fixture
def run(folder: Path) -> Run:
    def call(*arguments: str, given: str | None = None, exit_code: int = 0) -> Result:
        done = CliRunner().invoke(meruit, [*arguments, "--data", str(folder)], input=given, standalone_mode=False)
        if exit_code < 0:
            assert done.exception is not None, done.output
        else:
            assert done.exception is None, (done.exception, done.output)
            assert done.return_value == exit_code, done.output
        return done

    return call


# Any: JSON of the command's own shape.
def answer(done: Result) -> Any:
    return json.loads(done.stdout)


def labels_file(folder: Path, name: str, tmp_path: Path) -> str:
    """What a person who knows the truth says of every case of a review."""
    from meruit.review.service import Reviews

    store = Store.open(Location(folder))
    reviews = Reviews(store, "default")
    cases = [draw.case_id for draw in reviews.draws(reviews.find(name))]
    store.close()
    rows = [
        {"case_id": case, "labeller": "ann", "choice": "yes" if truth_of(number_of(case)) else "no"} for case in cases
    ]
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_judge_is_calibrated_from_the_command_line(run: Run, folder: Path, tmp_path: Path) -> None:
    made = answer(
        run("review", "create", "q1", "first", "--criterion", "right", "--random", "60", "--seed", "1", "--json")
    )
    assert (made["cases"], made["terms"]["seed"]) == (60, 1)
    file = labels_file(folder, "q1", tmp_path)
    added = answer(run("review", "import", "q1", file, "--json"))
    assert added["added"] == 60
    assert "0 labels added, 60 were there already" in run("review", "import", "q1", file).output
    shown = answer(run("review", "show", "q1", "--json"))
    assert shown["progress"]["labelled"] == 60
    assert shown["corrected"]["these"]["labels"] == 60
    assert "corrected, these cases" in run("review", "show", "q1").output
    (found,) = answer(run("judge", "calibrate", "right", "--against", "q1", "--json"))["calibrations"]
    assert found["calibration"]["labels"] == 60
    text = run("judge", "calibrate", "right", "--min-labels", "50", "--min-kappa", "0.2").output
    assert "true positive rate" in text
    assert "drift: none" in text
    assert run("judge", "calibrate", "right", "--min-kappa", "0.99", exit_code=1).return_value == 1
    assert run("judge", "calibrate", "right", "--min-labels", "61", exit_code=1).return_value == 1
    assert "calibrated" in run("judge", "list").output
    assert answer(run("judge", "list", "--json"))["calibrations"]
    pilot = answer(run("judge", "plan", "0.05", "--pilot", "q1", "--tpr", "0.9", "--tnr", "0.9", "--json"))["plans"]
    assert [one["basis"] for one in pilot] == ["pilot", "claimed"]
    assert "with labels alone" in run("judge", "plan", "0.1", "--cases", "500", "--tpr", "0.9", "--tnr", "0.8").output
    corrected = answer(run("eval", "show", "first", "--json"))["corrected"]
    assert "right" in {one["criterion"] for one in corrected}
    assert "corrected, these cases" in run("eval", "show", "first").output


def test_labels_are_given_by_single_keys(run: Run) -> None:
    run("review", "create", "keys", "first", "--random", "5", "--seed", "3", "--labeller", "ann")
    first = run("review", "label", "keys", "--as", "ann", given="yx\nn<y.")
    assert "[y] yes" in first.output
    assert "exact_match" not in first.output
    # Back at the second case, its label is superseded.
    assert answer(run("review", "show", "keys", "--json"))["review"]["labels"] == 3
    run("review", "label", "keys", "--as", "ann", given="+unclear\n?")
    rows = [json.loads(line) for line in run("review", "export", "keys").stdout.splitlines()]
    assert [row["choice"] for row in rows] == ["yes", "yes", "cannot_tell"]
    assert rows[-1]["note"] == "unclear"
    number = str(rows[-1]["number"])
    assert answer(run("review", "erase", "keys", number, "--labeller", "bob", "--reason", "r", "--json")) == {
        "erased": 0
    }
    assert "1" in run("review", "erase", "keys", number, "--reason", "asked for").stdout
    assert "unclear" not in run("review", "export", "keys").stdout
    assert len(run("review", "export", "keys", "--all", "--format", "csv").stdout.splitlines()) == 5
    run("review", "label", "keys", "--as", "ann", given="yy")
    assert run("review", "label", "keys", "--as", "ann", given="y").exception is None


def test_labels_of_the_same_cases_correct_a_comparison(run: Run, folder: Path, tmp_path: Path) -> None:
    run("review", "create", "a", "first", "--random", "40", "--seed", "5")
    run("review", "create", "b", "second", "--same-cases-as", "a")
    for name in ("a", "b"):
        run("review", "import", name, labels_file(folder, name, tmp_path))
    compared = answer(run("eval", "compare", "first", "second", "--json"))
    (corrected,) = compared["corrected"][0]
    assert corrected["these"]["labels"] == 40
    assert "corrected by labels" in run("eval", "compare", "first", "second").output


def test_reviews_are_listed(run: Run) -> None:
    run("review", "create", "listed", "second", "--random", "2", "--choice", "good=met", "--choice", "bad:x=not_met")
    found = answer(run("review", "list", "--json", "--limit", "1"))
    assert found["next"] == found["reviews"][0]["id"]
    assert "listed" in run("review", "list", "--evaluation", "second").output
    assert run("review", "list", "--limit", "1").exception is None


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "{",
        "[]",
        '{"case_id": "c1"}',
        '{"choice": "yes", "labeller": "a"}',
        '{"case_id": "nope", "choice": "yes", "labeller": "a"}',
        '{"number": 99, "choice": "yes", "labeller": "a"}',
        '{"number": "one", "choice": "yes", "labeller": "a"}',
        '{"number": 1, "labeller": "a"}',
        '{"number": 1, "choice": "yes", "note": 3, "labeller": "a"}',
        '{"number": 1, "choice": "yes"}',
        '{"number": 1, "choice": "yes", "labeller": "a"}\n{"number": 2, "choice": "maybe", "labeller": "a"}',
    ],
)
def test_a_file_with_a_wrong_row_adds_nothing(run: Run, rows: str, tmp_path: Path) -> None:
    run("review", "create", "files", "first", "--random", "3", "--seed", "9")
    file = tmp_path / "labels.jsonl"
    file.write_text(rows)
    done = run("review", "import", "files", str(file), exit_code=-1)
    assert getattr(done.exception, "code", "") == "invalid_review"
    assert answer(run("review", "show", "files", "--json"))["review"]["labels"] == 0


def test_csv_comes_back_as_it_went_out(run: Run, tmp_path: Path) -> None:
    run("review", "create", "table", "first", "--random", "3", "--seed", "10")
    file = tmp_path / "labels.csv"
    file.write_text("\ufeffnumber,choice,note\n1,yes,=1+1\n2,no,\n")
    run("review", "import", "table", str(file), "--as", "ann")
    out = run("review", "export", "table", "--format", "csv").stdout
    # A spreadsheet must not take a note for a formula.
    assert "'=1+1" in out
    file.write_text('number,choice\n1,"yes')
    assert getattr(run("review", "import", "table", str(file), exit_code=-1).exception, "code", "") == "invalid_review"
    file.write_bytes(b"\xff\xfe")
    assert getattr(run("review", "import", "table", str(file), exit_code=-1).exception, "code", "") == "invalid_review"
    missing = run("review", "import", "table", str(tmp_path / "none.csv"), exit_code=-1)
    assert getattr(missing.exception, "code", "") == "invalid_review"


def test_wrong_options_are_usage_errors(run: Run) -> None:
    assert run("judge", "plan", "0.1", exit_code=-1).exception is not None
    assert run("judge", "plan", "0.1", "--tpr", "0.9", "--tnr", "0.9", exit_code=-1).exception is not None
    assert run("review", "create", "x", "first", "--choice", "good", exit_code=-1).exception is not None
    unknown = run("judge", "calibrate", "nobody-labelled-this", exit_code=-1)
    assert getattr(unknown.exception, "code", "") == "not_found"


@pytest.mark.parametrize("name", ["", "  ", "a\nb"])
def test_a_labeller_without_a_name_is_refused(run: Run, name: str) -> None:
    run("review", "create", "nameless", "first", "--criterion", "right", "--random", "5", "--seed", "1")
    refused = run("review", "label", "nameless", "--as", name, given="y", exit_code=-1)
    assert isinstance(refused.exception, InvalidCase)
    assert answer(run("review", "show", "nameless", "--json"))["progress"]["labelled"] == 0
