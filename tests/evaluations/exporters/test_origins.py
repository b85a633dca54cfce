"""Round trips with the tools themselves, which `make servers` installs in an environment of their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meruit.evaluations.evaluation import Case, CaseError
from meruit.evaluations.export import EvaluationExport, write_export
from meruit.evaluations.importers.support.pieces import ImportedCase
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, with_claim

EVALUATORS = Path(__file__).parents[2] / "servers" / "evaluators"
PYTHON = EVALUATORS / ".venv" / "bin" / "python"
ENDING_S = 600

pytestmark = pytest.mark.skipif(
    not (EVALUATORS / ".venv" / ".ready").exists(), reason="inspect-ai and others are not installed: `make servers`"
)


def run(folder: Path, program: str, *arguments: Path) -> str:
    """Run a program beside this file's folder with the Python that has those tools."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "DEEPEVAL_RESULTS_FOLDER": str(folder),
        "DEEPEVAL_TELEMETRY_OPT_OUT": "YES",
    }
    ended = subprocess.run(
        [PYTHON, "-P", EVALUATORS / program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDING_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def cases_of(path: Path, name: str) -> list[Case]:
    source = ImportSource(path)
    importer = recognise(source)
    assert importer.name == name
    return [with_claim(one, name) for one in importer.read(source) if isinstance(one, ImportedCase)]


def claims_of(path: Path, name: str) -> dict[str, str | None]:
    return {case.id: "error" if case.error else case.claimed for case in cases_of(path, name)}


def test_inspect_reads_our_log_and_we_read_its_scores(exported: EvaluationExport, tmp_path: Path) -> None:
    ours = tmp_path / "ours.json"
    write_export(exported, "inspect", str(ours))
    found: dict[str, Any] = json.loads(run(tmp_path, "run_inspect.py", tmp_path, ours))
    read = found.pop(str(ours))
    assert read["status"] == "success"
    assert [(one["id"], one["epoch"], one["scores"].get("meruit"), one["error"]) for one in read["samples"]][:4] == [
        ("right", 1, "C", False),
        ("wrong", 1, "I", False),
        ("hostile", 1, "I", False),
        ("broken", 1, None, True),
    ]
    assert sorted(Path(path).suffix for path in found) == [".eval", ".json"]
    for path, log in found.items():
        cases = {(case.id, case.repeat): case for case in cases_of(Path(path), "inspect")}
        theirs = {(one["id"], one["epoch"] - 1): one for one in log["samples"]}
        assert {key: case.metadata["origin"]["scores"] for key, case in cases.items() if not case.error} == {
            key: one["scores"] for key, one in theirs.items() if not one["error"]
        }
        assert {key for key, case in cases.items() if case.error is CaseError.ORIGIN_ERROR} == {
            key for key, one in theirs.items() if one["error"]
        }
        judged = [case.claimed == "pass" for case in cases.values() if not case.error]
        assert sum(judged) / len(judged) == log["scores"]["match"]["accuracy"]


def test_a_report_of_pydantic_evals_keeps_its_claims(tmp_path: Path) -> None:
    run(tmp_path, "run_pydantic_evals.py", tmp_path / "report.json")
    assert claims_of(tmp_path / "report.json", "pydantic-evals") == {
        "france": "pass",
        "norway": "fail",
        "peru": None,
        "kenya": "error",
    }


def test_a_test_run_of_deepeval_keeps_its_claims(tmp_path: Path) -> None:
    run(tmp_path, "run_deepeval.py")
    (written,) = tmp_path.glob("test_run_*.json")
    assert claims_of(written, "deepeval") == {"fr": "pass", "no": "fail", "ke": None}
