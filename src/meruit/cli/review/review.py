"""`meruit review`: people label cases of an evaluation, blind."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    RECORDED_BY,
    ExitCode,
    escape_control_characters,
    json_option,
    note,
    print_json,
    say,
    store_options,
    tenant_option,
)
from meruit.errors import InvalidReview, MeruitError

if TYPE_CHECKING:
    from meruit.review.label import LabelChoice, ReviewRecord
    from meruit.review.service import BlindCase, Reviews

BACK, NOTE, STOP = "<", "+", "."
FORMATS = ("jsonl", "csv")
MAX_FILE_BYTES = 64 * 1024 * 1024


@click.group()
def review() -> None:
    """Let people label cases blind, and see how far they agree."""


def _parse_choice(text: str) -> "LabelChoice":
    from meruit.review.label import LabelChoice

    name, _, meaning = text.rpartition("=")
    label, _, key = name.partition(":")
    if meaning not in ("met", "not_met") or not label:
        raise click.UsageError(f"a choice is NAME=met or NAME=not_met, or NAME:KEY=…, not {text!r}")
    return LabelChoice(label, key or label[:1].lower(), meets=meaning == "met")


@review.command("create")
@click.argument("name", metavar="NAME")
@click.argument("evaluation", metavar="EVALUATION")
@click.option("--criterion", metavar="ID", help="Criterion to label (default: the whole verdict).")
@click.option("--random", type=click.IntRange(0), default=0, metavar="N", help="Cases drawn at random.")
@click.option("--doubt", type=click.IntRange(0), default=0, metavar="N", help="Cases that the judge did not decide.")
@click.option("--disagreement", type=click.IntRange(0), default=0, metavar="N", help="Cases whose judges disagree.")
@click.option("--stratum", "stratum_tag", metavar="TAG", help="Draw within each value of this tag.")
@click.option("--same-cases-as", metavar="REVIEW", help="Draw the cases of this review, to compare two evaluations.")
@click.option("--question", default="", metavar="TEXT", help="Question (default: the one that the judge is asked).")
@click.option("--instructions", metavar="FILE", help="Text file with instructions for labellers.")
@click.option("--choice", "choices", multiple=True, metavar="NAME=met", help="Choice: NAME[:KEY]=met or =not_met.")
@click.option("--labeller", "labellers", multiple=True, metavar="NAME", help="Who may label (default: anyone).")
@click.option("--per-case", type=click.IntRange(1), default=1, metavar="N", help="People who label each case.")
@click.option("--show", "shows", multiple=True, metavar="PART", help="Part to show: input, output or metadata.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the draw, to make it again.")
@tenant_option
@store_options
@json_option
def create_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    evaluation: str,
    criterion: str | None,
    random: int,
    doubt: int,
    disagreement: int,
    stratum_tag: str | None,
    same_cases_as: str | None,
    question: str,
    instructions: str | None,
    choices: tuple[str, ...],
    labellers: tuple[str, ...],
    per_case: int,
    shows: tuple[str, ...],
    seed: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Draw cases of an evaluation for people to label.

    Only cases drawn with --random estimate a rate or a judge's error. Cases drawn by --doubt and --disagreement are for
    reading.
    """
    import msgspec

    from meruit.review.service import ReviewRequest, Reviews

    wanted = ReviewRequest(
        name=name,
        evaluation=evaluation,
        criterion=criterion,
        question=question,
        instructions="" if instructions is None else _read_text(instructions),
        choices=tuple(map(_parse_choice, choices)),
        shows=shows or ("input", "output"),
        labellers=labellers,
        per_case=per_case,
        random=random,
        disagreement=disagreement,
        doubt=doubt,
        stratum_tag=stratum_tag,
        seed=seed,
        same_cases_as=same_cases_as,
    )
    with open_records(data, database_url) as store:
        made = Reviews(store, tenant).create(wanted, by=RECORDED_BY)
    if as_json:
        print_json(msgspec.json.encode(made))
        return ExitCode.PASSED
    say(f"{made.name}: {made.cases:,} of {made.population:,} cases, seed {made.terms.seed}")
    say(f"label them with `meruit review label {made.name}`")
    return ExitCode.PASSED


@review.command("label")
@click.argument("name", metavar="NAME")
@click.option("--as", "labeller", metavar="PERSON", help="Who labels (default: your user name).")
@tenant_option
@store_options
@json_option
def label_command(
    *, name: str, labeller: str | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Label the next cases, one key for each choice.

    Each label is kept at once, so you can stop and go on later. `<` goes back to the last case, `+` adds a note to the
    next label, `?` says that you cannot tell, `.` stops. With --json, cases are shown on stderr.
    """
    import msgspec

    from meruit.evaluations.case_judge import check_name
    from meruit.review.service import Reviews

    labeller = _user_name() if labeller is None else labeller
    check_name(labeller, "the labeller (--as)")
    with open_records(data, database_url) as store:
        reviews = Reviews(store, tenant)
        found = reviews.find(name)
        for line in found.terms.instructions.splitlines():
            say(escape_control_characters(line), err=as_json)
        done = _label_cases(reviews, found, labeller, err=as_json)
        progress = reviews.progress(found, labeller)
    if as_json:
        print_json(msgspec.json.encode({"labelled": done, "progress": progress}))
    else:
        note(f"{done:,} labelled; `meruit review show {name}` shows the whole")
    return ExitCode.PASSED


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise MeruitError("your user name is not known here; name yourself with --as") from None


def _label_cases(reviews: "Reviews", found: "ReviewRecord", labeller: str, *, err: bool) -> int:
    from meruit.cli.views.review import print_case
    from meruit.review.truth import choice_of_key

    done: list[int] = []
    written = ""
    before = reviews.progress(found, labeller).own
    case: BlindCase | None = reviews.next_case(found, labeller)
    while case is not None:
        print_case(case, before + len(done), found.cases, err=err)
        key = _read_key()
        if key in ("", STOP, "\x04"):
            break
        if key == BACK:
            case = reviews.case(found, done.pop()) if done else case
        elif key == NOTE:
            written = click.prompt("note", default="", show_default=False, err=err)
        elif (choice := choice_of_key(case.choices, key)) is not None:
            reviews.label(found, case.number, labeller=labeller, choice=choice, note=written, by=RECORDED_BY)
            done.append(case.number)
            written = ""
            case = reviews.next_case(found, labeller)
        else:
            note(f"{key!r} is not a key of this review")
    return len(done)


def _read_key() -> str:
    """One key of a terminal, or one character of a pipe."""
    if sys.stdin.isatty():
        return click.getchar()
    key = sys.stdin.read(1)
    while key in ("\n", "\r"):
        key = sys.stdin.read(1)
    return key


@review.command("list")
@click.option("--evaluation", metavar="NAME", help="Only reviews of this evaluation.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="Most rows.")
@click.option("--before", metavar="ID", help="Cursor: pass the `next` value of the previous page.")
@tenant_option
@store_options
@json_option
def list_command(
    *,
    evaluation: str | None,
    limit: int,
    before: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List reviews, newest first."""
    import msgspec

    from meruit.cli.views.review import print_reviews
    from meruit.evaluations.reader import Evaluations
    from meruit.review.service import Reviews

    with open_records(data, database_url) as store:
        about = None if evaluation is None else Evaluations(store, tenant).find(evaluation)
        found = Reviews(store, tenant).page(evaluation=about, before=before, limit=limit)
    following = found[-1].id if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({"reviews": found, "next": following}))
    else:
        print_reviews(found, following)
    return ExitCode.PASSED


@review.command("show")
@click.argument("name", metavar="NAME")
@tenant_option
@store_options
@json_option
def show_command(*, name: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show how far a review is, and how far people agree."""
    import msgspec

    from meruit.cli.views.review import print_review
    from meruit.evaluations.reader import Evaluations
    from meruit.review.results import ReviewResults
    from meruit.review.service import Reviews

    with open_records(data, database_url) as store:
        reviews = Reviews(store, tenant)
        found = reviews.find(name)
        progress = reviews.progress(found)
        evaluation = Evaluations(store, tenant).find(found.evaluation_id)
        rate = ReviewResults(store, tenant).corrected_rate(evaluation, found.criterion)
    if as_json:
        print_json(msgspec.json.encode({"review": found, "progress": progress, "corrected": rate}))
    else:
        print_review(found, progress, rate)
    return ExitCode.PASSED


@review.command("export")
@click.argument("name", metavar="NAME")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Format.")
@click.option("--all", "superseded", is_flag=True, help="Also labels that were superseded.")
@tenant_option
@store_options
@json_option
def export_command(
    *,
    name: str,
    form: str,
    superseded: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Write the labels of a review to stdout, and how cases were drawn.

    With --json, JSON Lines in place of --format; errors are JSON too.
    """
    from meruit.review.label_files import LabelFormat, write_labels
    from meruit.review.service import Reviews

    with open_records(data, database_url) as store:
        reviews = Reviews(store, tenant)
        found = reviews.find(name)
        labels = reviews.labels(found, superseded=superseded)
        for line in write_labels(LabelFormat("jsonl" if as_json else form), found, reviews.draws(found), labels):
            say(line, newline=False)
    return ExitCode.PASSED


@review.command("erase")
@click.argument("name", metavar="NAME")
@click.argument("number", type=click.IntRange(1), metavar="NUMBER")
@click.option("--labeller", metavar="PERSON", help="Erase only the notes of this person (default: of all).")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, one line; it is recorded.")
@tenant_option
@store_options
@json_option
def erase_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    number: int,
    labeller: str | None,
    reason: str,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Erase what people wrote beside the labels of a case.

    NUMBER is the place of the case in the review. The labels stay, and the audit log still proves them.
    """
    import msgspec

    from meruit.cli.shared.contracts import check_line
    from meruit.review.service import Reviews

    check_line("--reason", reason)
    with open_records(data, database_url) as store:
        reviews = Reviews(store, tenant)
        erased = reviews.erase_notes(reviews.find(name), number, reason=reason, by=RECORDED_BY, labeller=labeller)
    if as_json:
        print_json(msgspec.json.encode({"erased": erased}))
    else:
        say(f"notes erased: {erased:,}")
    return ExitCode.PASSED


@review.command("import")
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE")
@click.option("--as", "labeller", metavar="PERSON", help="Labeller of rows that name none.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format (default: by the ending of the file).")
@tenant_option
@store_options
@json_option
def import_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    file: str,
    labeller: str | None,
    form: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Add labels from a file (JSON Lines or CSV), or from - for stdin.

    A row has `case_id` or `number`, `choice`, and if you like `labeller`, `repeat` and `note`. All rows are kept, or
    none where one does not fit. The same file again changes nothing.
    """
    import msgspec

    from meruit.review.label_files import LabelFormat, read_labels
    from meruit.review.service import Reviews

    chosen = form or ("csv" if file.endswith(".csv") else "jsonl")
    text = _read_text(file)
    with open_records(data, database_url) as store:
        reviews = Reviews(store, tenant)
        found = reviews.find(name)
        given = read_labels(text, LabelFormat(chosen), reviews.draws(found), labeller)
        before = found.labels
        imported = reviews.import_labels(found, given, by="import")
        added = reviews.find(found.id).labels - before
    if as_json:
        print_json(msgspec.json.encode({"labels": imported, "added": added}))
    else:
        say(f"{found.name}: {added:,} labels added, {len(given) - added:,} were there already")
    return ExitCode.PASSED


def _read_text(file: str) -> str:
    """A file as text, or stdin; raises UnreadableFile and InvalidReview."""
    try:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise InvalidReview(f"{file} cannot be read: {problem.strerror or problem}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidReview(f"{file} is larger than {MAX_FILE_BYTES:,} bytes; divide it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidReview(f"{file} is not UTF-8") from None
