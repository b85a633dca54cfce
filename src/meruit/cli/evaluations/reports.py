"""What `meruit eval run` writes for a pipeline: reports, the summary of its page, and annotations."""

import os
from collections.abc import Mapping
from pathlib import Path

from meruit.cli.terminal import escape_control_characters, note, say
from meruit.errors import MeruitError
from meruit.evaluations.ci import GateDecision, annotations, write_markdown
from meruit.evaluations.compare import EvaluationComparison
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.export import EvaluationExport, write_export
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.summary import EvaluationSummary

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable in which GitHub names the file of a step's summary."""
ACTIONS = "GITHUB_ACTIONS"
"""The variable that is `true` in a run of GitHub Actions."""


def write_reports(reader: Evaluations, done: EvaluationRecord, files: Mapping[str, str | None]) -> None:
    """Write the evaluation to each file that is named, by its format."""
    for format_name, file in files.items():
        if file is not None:
            write_export(EvaluationExport(reader, done), format_name, file)


def report_decision(
    criteria_file: str,
    done: EvaluationRecord,
    summary: EvaluationSummary,
    decision: GateDecision,
    compared: EvaluationComparison | None,
) -> None:
    """Print what was decided, and write it where the pipeline shows it."""
    for line in (*decision.notes, *decision.failures):
        note(line)
    page = os.environ.get(STEP_SUMMARY)
    if page:
        try:
            with Path(page).open("a", encoding="utf-8") as opened:
                opened.write(write_markdown(done, summary, decision, compared) + "\n")
        except OSError as problem:
            raise MeruitError(f"{STEP_SUMMARY} cannot be written: {problem.strerror or problem}") from None
    if os.environ.get(ACTIONS) == "true":
        for line in annotations(criteria_file, decision):
            # On stderr, where JSON on stdout stays whole; GitHub reads both.
            say(escape_control_characters(line), err=True)
