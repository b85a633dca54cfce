"""Under which keys an output is remembered, and how alike two outputs are that share one."""

from meruit.governance.fold import bands_of, likeness
from meruit.governance.history import SubmissionFingerprints, is_first_output
from meruit.model.governance import GovernanceResult, RecordedOutput

PART_LIKENESS = 0.9
"""What a match of one text among several means: the others differ."""
NEAR_LIKENESS = 0.85
"""From here on, two outputs are nearly the same."""


def output_keys(marks: SubmissionFingerprints) -> dict[str, float | None]:
    """Under which keys an output is found, with the likeness that a match means; None where signatures decide."""
    if marks.output is None:
        return {}
    parts = dict.fromkeys(marks.parts, PART_LIKENESS)
    bands = dict.fromkeys(bands_of(marks.signature), None) if marks.signature else {}
    return {**bands, **parts, marks.output: 1.0}


def describe_output(marks: SubmissionFingerprints, result: GovernanceResult | None) -> RecordedOutput | None:
    """How an output is remembered as its agent's own; None where it is not."""
    if marks.output is None or not is_first_output(result):
        return None
    return RecordedOutput(
        task=marks.task or marks.input, output=marks.output, parts=marks.parts, signature=marks.signature
    )


def keys_of(output: RecordedOutput) -> tuple[str, ...]:
    """The keys under which a remembered output is found."""
    marks = SubmissionFingerprints("", output.output, parts=output.parts, signature=output.signature)
    return (*output_keys(marks),)


def match_likeness(known: float | None, signature: str, other: str) -> float | None:
    """How alike two outputs are that share a key; None where they are not nearly the same."""
    alike = likeness(signature, other) if known is None else known
    return alike if alike >= NEAR_LIKENESS else None


def compare_fingerprints(one: SubmissionFingerprints, other: SubmissionFingerprints) -> float | None:
    """How alike two outputs are by the keys that they share; None where they are not nearly the same."""
    mine, theirs = output_keys(one), output_keys(other)
    found = (match_likeness(theirs[key], one.signature, other.signature) for key in mine.keys() & theirs.keys())
    return max((alike for alike in found if alike is not None), default=None)
