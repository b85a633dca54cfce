"""`meruit import`: results of another tool as an evaluation."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.evaluations.filters import parse_pairs
from meruit.cli.terminal import (
    ExitCode,
    config_option,
    json_option,
    note,
    print_json,
    python_full_option,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.evaluations.imports import ImportResult
    from meruit.evaluations.summary import EvaluationSummary


@click.command("import")
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--format", "format_name", metavar="FORMAT", help="Format, as inspect (default: by content).")
@click.option("--name", metavar="NAME", help="Name of the evaluation (default: that of the file).")
@click.option("--criteria", metavar="CRITERIA.yaml", help="Judge the work by these, beside what its origin claims.")
@click.option("--map", "mapping", metavar="MAP", help="Columns of plain rows, as input.reference=answer,claimed=ok.")
@click.option("--pass-score", type=click.FloatRange(0, 1), default=1.0, show_default=True, metavar="SCORE",
              help="Claimed score that counts as passed, where the origin has no verdict.")  # fmt: skip
@click.option(
    "--tag", "tags", callback=parse_pairs, multiple=True, metavar="NAME=VALUE", help="Such as model=m-1; repeatable."
)
@tenant_option
@store_options
@config_option
@python_full_option
@json_option
def import_command(  # noqa: PLR0913 - one an option
    *,
    path: str,
    format_name: str | None,
    name: str | None,
    criteria: str | None,
    mapping: str | None,
    pass_score: float,
    tags: tuple[tuple[str, str], ...],
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Import results of another tool as an evaluation.

    Without --criteria the verdicts are those that the origin claims. The same file is imported once. Exit codes: 0
    imported; 3 nothing in it could be judged.
    """
    # Imported here so that --help is quick.
    from meruit.app import open_store
    from meruit.cli.evaluations.view import print_summary
    from meruit.cli.shared.engine import load_engine
    from meruit.config import location_of
    from meruit.errors import MeruitError
    from meruit.evaluations.datafiles import ColumnMap
    from meruit.evaluations.importers.support.source import ImportSource
    from meruit.evaluations.imports import import_source, recognise
    from meruit.evaluations.reader import Evaluations
    from meruit.evaluations.service import Evaluator
    from meruit.outcomes.service import Registrar
    from meruit.verify.engine import VerificationEngine

    source = ImportSource(Path(path), ColumnMap() if mapping is None else ColumnMap.parse(mapping))
    if path == "-" or not (source.path.is_file() or source.path.is_dir()):
        raise MeruitError(f"{path!r} is not a file or folder; results are read twice, so a pipe cannot be imported")
    importer = recognise(source, format_name)
    loaded = (
        None if criteria is None else load_engine(criteria, config, allow_python_full=allow_python_full, governed=True)
    )
    store = open_store(location_of(data, database_url), make=True)
    try:
        engine = VerificationEngine() if loaded is None else loaded.engine
        evaluator = Evaluator(Registrar(engine, store), tenant)
        result = import_source(
            evaluator,
            source,
            importer,
            name=name or source.path.resolve().stem,
            criteria=None if loaded is None else evaluator.compile(loaded.criteria),
            tags=dict(tags),
            pass_score=pass_score,
        )
        summary = Evaluations(store, tenant).summary(result.evaluation)
        if as_json:
            print_json(_to_json(result, summary))
        else:
            if not result.is_new:
                note(f"{result.evaluation.name} was imported before; nothing is made twice")
            for message in result.survey.notes:
                note(message)
            print_summary(result.evaluation, summary)
        return ExitCode.PASSED if summary.overall.rate is not None else ExitCode.COULD_NOT_VERIFY
    finally:
        store.close()


def _to_json(result: "ImportResult", summary: "EvaluationSummary") -> bytes:
    import msgspec

    return msgspec.json.encode(
        {
            "evaluation": result.evaluation,
            "summary": summary,
            "format": result.survey.format,
            "new": result.is_new,
            "partial": result.survey.is_partial,
            "notes": result.survey.notes,
        }
    )
