"""An in-toto statement of the whole evaluation, signed by the store's key."""

from collections.abc import Iterator
from hashlib import sha256

from meruit.evaluations.export import EvaluationExport, case_name, is_open
from meruit.evaluations.exporters.jsonl import write_jsonl
from meruit.log.statement import envelope, test_result
from meruit.model.verdict import Verdict
from meruit.registry import exporters


@exporters.add("in-toto", ending=".intoto.json")
def write_in_toto(exported: EvaluationExport) -> Iterator[bytes]:
    """A signed in-toto statement (test-result v0.1 in DSSE) about the evaluation's JSON Lines."""
    evaluation, overall = exported.evaluation, exported.summary.overall
    hashed = sha256()
    for line in write_jsonl(exported):
        hashed.update(line)
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for case in exported.cases():
        (warned if is_open(case) else passed if case.summary.success else failed).append(case_name(case))
    verdict = Verdict.FAIL if failed else Verdict.INCONCLUSIVE if warned or not passed else Verdict.PASS
    configuration = {f"criteria/{evaluation.criteria_digest}.json": evaluation.criteria_digest}
    if evaluation.dataset_digest is not None:
        configuration["dataset"] = evaluation.dataset_digest
    statement = test_result(
        {f"{evaluation.name}.jsonl": hashed.hexdigest()},
        verdict,
        success=verdict is Verdict.PASS,
        passed=passed,
        warned=warned,
        failed=failed,
        configuration=configuration,
        annotations={
            "evaluation": evaluation.id,
            "cases": overall.cases,
            "pass_rate": None if overall.rate is None else f"{overall.rate:.6g}",
            "tags": dict(evaluation.tags),
        },
    )
    yield envelope(statement, exported.signer) + b"\n"
