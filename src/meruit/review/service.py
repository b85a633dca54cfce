"""Reviews: make a queue from an evaluation, hand out its cases blind, keep what people say."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.errors import InvalidReview, NotFound
from meruit.evaluations.case_judge import check_name
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.summary import OPEN
from meruit.log.commitment import SALT_BYTES
from meruit.model.record import Record
from meruit.review.agreement import Agreement, agreement_of
from meruit.review.ask import choices_of, instructions_of, question_of
from meruit.review.draw import CaseKey, draw_cases
from meruit.review.label import (
    CANNOT_TELL,
    CANNOT_TELL_KEY,
    DrawKind,
    Label,
    LabelChoice,
    ReviewDraw,
    ReviewRecord,
    ReviewTerms,
)
from meruit.review.label_files import GivenLabel
from meruit.review.store import read
from meruit.review.store.write import CreateReview, EraseNotes, RecordLabel, RecordLabels
from meruit.review.truth import ratings_of
from meruit.store.recorder import Write
from meruit.store.store import Store

MAX_DRAWN = 10_000
"""Cases of one queue."""
MAX_CHOICES = 12
MAX_TEXT = 20_000
"""Characters of instructions, and of a note."""
PARTS = ("input", "output", "metadata")
SEED_BYTES = 6
RESERVED_KEYS = CANNOT_TELL_KEY + "<+."
"""Cannot tell, back, note, and stop: no choice has one of these keys."""


class ReviewRequest(Record, frozen=True):
    """What a review is to be."""

    name: str
    evaluation: str
    criterion: str | None = None
    """None for the whole verdict."""
    question: str = ""
    """Empty: that of the judged criterion, or whether the work meets it."""
    instructions: str = ""
    choices: tuple[LabelChoice, ...] = ()
    """Empty: those of the judged criterion, or yes and no."""
    shows: tuple[str, ...] = ("input", "output")
    labellers: tuple[str, ...] = ()
    per_case: int = 1
    random: int = 0
    disagreement: int = 0
    doubt: int = 0
    stratum_tag: str | None = None
    seed: int | None = None
    same_cases_as: str | None = None
    """A review of another evaluation; its cases are drawn here too, so that the two can be compared."""


class BlindCase(Record, frozen=True):
    """A case as a labeller sees it: the work, and nothing of what anyone made of it."""

    review: str
    number: int
    question: str
    instructions: str
    choices: tuple[LabelChoice, ...]
    parts: Mapping[str, Any]
    """The parts that the review shows; None for one that was erased."""


class ReviewProgress(Record, frozen=True):
    """How far a review is."""

    cases: int
    labelled: int
    """Cases with at least one label."""
    own: int
    """Cases that this labeller has labelled."""
    cannot_tell: int
    """Labels that say so."""
    labellers: tuple[str, ...]
    agreement: Agreement


class Reviews:
    """The reviews of one tenant."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = store, tenant
        self._evaluations = Evaluations(store, tenant)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._store.database.reading() as connection:
            yield connection

    def create(self, wanted: ReviewRequest, *, by: str) -> ReviewRecord:
        """Draw the cases and keep the queue; the same request with the same seed finds what it made."""
        return self._store.recorder.write(self.draft_create(wanted, by=by))

    def draft_create(self, wanted: ReviewRequest, *, by: str) -> Write[ReviewRecord]:
        """The write that keeps a queue; raises InvalidReview for what cannot be asked or drawn."""
        check_name(wanted.name, "the review")
        evaluation = self._evaluations.find(wanted.evaluation)
        position = self._position(evaluation, wanted.criterion)
        seed = wanted.seed
        if seed is None:
            seed = int.from_bytes(self._store.surroundings.entropy(SEED_BYTES), "big")
        if wanted.random + wanted.doubt + wanted.disagreement > MAX_DRAWN:
            raise InvalidReview(f"a review has at most {MAX_DRAWN:,} cases; make several")
        population = [case for case in self._evaluations.cases(evaluation) if case.error is None]
        copied = None if wanted.same_cases_as is None else self.find(wanted.same_cases_as)
        terms = self._terms(evaluation, wanted, position, seed, copied)
        if copied is None:
            draws = self._draw(evaluation, wanted, population, position, seed)
        else:
            draws = self._copy(copied, wanted, population)
        return CreateReview(
            tenant=self._tenant,
            name=wanted.name,
            evaluation_id=evaluation.id,
            evaluation=evaluation.name,
            criterion=wanted.criterion,
            terms=terms,
            draws=tuple(draws),
            population=len(population),
            by=by,
        )

    def _draw(
        self,
        evaluation: EvaluationRecord,
        wanted: ReviewRequest,
        population: Sequence[CaseSummary],
        position: int | None,
        seed: int,
    ) -> list[ReviewDraw]:
        tag = wanted.stratum_tag
        strata = {_key(case): "" if tag is None else case.tags.get(tag, "") for case in population}
        purposive = {
            DrawKind.DOUBT: self._doubtful(population, position)[: wanted.doubt],
            DrawKind.DISAGREEMENT: self._find_disputed(evaluation, population, position, wanted.disagreement),
        }
        return draw_cases([*strata], strata, random=wanted.random, purposive=purposive, seed=seed)

    def _copy(self, copied: ReviewRecord, wanted: ReviewRequest, population: Sequence[CaseSummary]) -> list[ReviewDraw]:
        """The same cases in the same order, as far as this evaluation has them."""
        if wanted.random or wanted.doubt or wanted.disagreement:
            raise InvalidReview("the cases of another review are drawn as they are; leave the other numbers out")
        known = {_key(case) for case in population}
        found = [one for one in self.draws(copied) if CaseKey(one.case_id, one.repeat) in known]
        if not found:
            raise InvalidReview(f"no case of {copied.name!r} is in the evaluation {wanted.evaluation!r}")
        return [msgspec.structs.replace(one, number=place) for place, one in enumerate(found, 1)]

    def _position(self, evaluation: EvaluationRecord, criterion: str | None) -> int | None:
        if criterion is None:
            return None
        return self._evaluations.criterion_positions(evaluation, [criterion])[0]

    def _terms(
        self,
        evaluation: EvaluationRecord,
        wanted: ReviewRequest,
        position: int | None,
        seed: int,
        copied: ReviewRecord | None,
    ) -> ReviewTerms:
        criterion = None if position is None else self._evaluations.criteria(evaluation).criteria[position]
        terms = ReviewTerms(
            question=wanted.question or question_of(criterion),
            choices=wanted.choices or choices_of(criterion),
            instructions=wanted.instructions or instructions_of(criterion),
            shows=wanted.shows,
            labellers=wanted.labellers,
            per_case=wanted.per_case,
            stratum_tag=wanted.stratum_tag,
            seed=seed,
            same_cases_as=None if copied is None else copied.terms.same_cases_as or copied.id,
        )
        check_terms(terms)
        return terms

    @staticmethod
    def _doubtful(population: Sequence[CaseSummary], position: int | None) -> list[CaseKey]:
        return [_key(case) for case in population if answer_of_judge(case, position) is None]

    def _find_disputed(
        self, evaluation: EvaluationRecord, population: Sequence[CaseSummary], position: int | None, most: int
    ) -> list[CaseKey]:
        """Cases whose votes differ, or that another tool judged otherwise."""
        found = [_key(case) for case in population if case.claimed not in (None, case.verdict.value)][:most]
        if position is None or len(found) >= most:
            return found
        for detail in self._evaluations.details(evaluation):
            results = [] if detail.result is None else detail.result.criterion_results
            if len(found) < most and position < len(results) and has_split_votes(results[position].details):
                found.append(_key(detail.summary))
        return [*dict.fromkeys(found)]

    def find(self, name_or_id: str) -> ReviewRecord:
        """The review of that name or id; raises NotFound."""
        with self._reading() as connection:
            return read.find_review(connection, self._tenant, name_or_id)

    def page(
        self, *, evaluation: EvaluationRecord | None = None, before: str | None = None, limit: int = 50
    ) -> list[ReviewRecord]:
        """The newest reviews, of those older than the id `before`."""
        with self._reading() as connection:
            return read.page_reviews(
                connection,
                self._tenant,
                evaluation_id=None if evaluation is None else evaluation.id,
                before=before,
                limit=limit,
            )

    def draws(self, review: ReviewRecord) -> list[ReviewDraw]:
        """The queue; not for labellers."""
        with self._reading() as connection:
            return read.read_draws(connection, self._tenant, review.id)

    def labels(self, review: ReviewRecord, *, superseded: bool = False) -> list[Label]:
        """What each person said last of each case, or all that they ever said."""
        with self._reading() as connection:
            return read.read_labels(connection, self._tenant, review.id, superseded=superseded)

    def last_labels(self, review: ReviewRecord, labeller: str, limit: int) -> tuple[int, list[Label]]:
        """How many cases a person labelled, and what they said last, the newest first."""
        with self._reading() as connection:
            return read.last_labels(connection, self._tenant, review.id, labeller, limit)

    def labels_of_case(self, review: ReviewRecord, case_id: str, repeat: int = 0) -> list[Label]:
        """What each person said last of one case; empty where it is not in the queue."""
        with self._reading() as connection:
            draw = read.find_draw(connection, self._tenant, review.id, case_id, repeat)
            return [] if draw is None else read.read_labels(connection, self._tenant, review.id, draw.number)

    def next_case(self, review: ReviewRecord, labeller: str) -> BlindCase | None:
        """The next case for this person, blind; None where nothing is left for them."""
        check_labeller(review, labeller)
        with self._reading() as connection:
            draw = read.find_next(connection, self._tenant, review, labeller)
        return None if draw is None else self._blind(review, draw)

    def case(self, review: ReviewRecord, number: int) -> BlindCase:
        """One case of the queue, blind; raises NotFound."""
        draw = None
        if 0 < number <= review.cases:
            with self._reading() as connection:
                draw = read.find_numbered_draw(connection, self._tenant, review.id, number)
        if draw is None:
            raise NotFound(f"the review {review.name!r} has no case {number}; it has {review.cases}")
        return self._blind(review, draw)

    def _blind(self, review: ReviewRecord, draw: ReviewDraw) -> BlindCase:
        evaluation = self._evaluations.find(review.evaluation_id)
        detail = self._evaluations.case(evaluation, draw.case_id, draw.repeat)
        shown = {"input": detail.input, "output": detail.output, "metadata": detail.metadata}
        terms = review.terms
        choices = (*terms.choices, LabelChoice(CANNOT_TELL, CANNOT_TELL_KEY, meets=False))
        parts = {name: shown[name] for name in terms.shows}
        return BlindCase(
            review=review.name,
            number=draw.number,
            question=terms.question,
            instructions=terms.instructions,
            choices=choices,
            parts=parts,
        )

    def label(self, review: ReviewRecord, number: int, *, labeller: str, choice: str, note: str = "", by: str) -> Label:
        """Keep what a person says of a case; durable when this returns."""
        return self._store.recorder.write(
            self.draft_label(review, number, labeller=labeller, choice=choice, note=note, by=by)
        )

    def import_labels(self, review: ReviewRecord, given: Sequence[GivenLabel], *, by: str) -> list[Label]:
        """Keep all labels of a file, or none where one does not fit; the same file again changes nothing."""
        return self._store.recorder.write(self.draft_import(review, given, by=by))

    def draft_import(self, review: ReviewRecord, given: Sequence[GivenLabel], *, by: str) -> Write[list[Label]]:
        """The write that keeps several labels."""
        return RecordLabels(
            tuple(
                self.draft_label(review, one.number, labeller=one.labeller, choice=one.choice, note=one.note, by=by)
                for one in given
            )
        )

    def draft_label(
        self, review: ReviewRecord, number: int, *, labeller: str, choice: str, note: str = "", by: str
    ) -> RecordLabel:
        """The write that keeps a label."""
        check_name(labeller, "the labeller")
        if len(note) > MAX_TEXT:
            raise InvalidReview(f"a note has at most {MAX_TEXT:,} characters, not {len(note):,}")
        salt, note_salt = (self._store.surroundings.entropy(SALT_BYTES) for _ in range(2))
        return RecordLabel(
            tenant=self._tenant,
            review_id=review.id,
            number=number,
            labeller=labeller,
            choice=choice,
            note=note,
            by=by,
            salt=salt,
            note_salt=note_salt,
        )

    def erase_notes(
        self, review: ReviewRecord, number: int, *, reason: str, by: str, labeller: str | None = None
    ) -> int:
        """Erase what people wrote beside the labels of a case, of one person or all; returns how many notes."""
        if not 1 <= number <= review.cases:
            raise NotFound(f"the review {review.name!r} has no case {number}; it has {review.cases}")
        erased = self._store.recorder.write(
            EraseNotes(self._tenant, review.id, number, reason=reason, by=by, labeller=labeller)
        )
        self._store.database.truncate_wal()
        return erased

    def progress(self, review: ReviewRecord, labeller: str | None = None) -> ReviewProgress:
        """How far it is, and how far people agree."""
        labels = self.labels(review)
        return ReviewProgress(
            cases=review.cases,
            labelled=len({label.number for label in labels}),
            own=sum(label.labeller == labeller for label in labels),
            cannot_tell=sum(label.choice == CANNOT_TELL for label in labels),
            labellers=tuple(sorted({label.labeller for label in labels})),
            agreement=agreement_of(ratings_of(labels)),
        )


def check_labeller(review: ReviewRecord, labeller: str) -> None:
    """Refuse a person who is not assigned."""
    check_name(labeller, "the labeller")
    if review.terms.labellers and labeller not in review.terms.labellers:
        raise InvalidReview(
            f"{labeller!r} is not assigned to {review.name!r}; it is for {', '.join(review.terms.labellers)}"
        )


def check_terms(terms: ReviewTerms) -> None:
    """Refuse what cannot be asked or answered."""
    check_choices(terms.choices)
    if not terms.shows or not set(terms.shows) <= set(PARTS):
        raise InvalidReview(f"a review shows at least one of {', '.join(PARTS)}, not {', '.join(terms.shows)}")
    if terms.per_case < 1:
        raise InvalidReview(f"at least one person labels a case, not {terms.per_case}")
    if terms.labellers and terms.per_case > len(terms.labellers):
        raise InvalidReview(f"{terms.per_case} people per case need as many labellers, not {len(terms.labellers)}")
    if max(len(terms.question), len(terms.instructions)) > MAX_TEXT:
        raise InvalidReview(f"question and instructions have at most {MAX_TEXT:,} characters each")
    for labeller in terms.labellers:
        check_name(labeller, "a labeller")


def check_choices(choices: Sequence[LabelChoice]) -> None:
    """Refuse choices that are too few, share a name or a key, or all mean the same."""
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise InvalidReview(f"a review has 2 to {MAX_CHOICES} choices, not {len(choices)}")
    for choice in choices:
        check_name(choice.name, "a choice")
        typed = choice.key.isprintable() and not choice.key.isspace() and choice.key not in RESERVED_KEYS
        if len(choice.key) != 1 or not typed:
            raise InvalidReview(
                f"the choice {choice.name!r} needs one key that can be typed, other than {' '.join(RESERVED_KEYS)}, "
                f"not {choice.key!r}"
            )
    names, keys = [one.name for one in choices], [one.key for one in choices]
    if len({*names, CANNOT_TELL}) <= len(names) or len({*keys}) < len(keys):
        raise InvalidReview(f"two choices share a name or a key; {CANNOT_TELL!r} is part of every review")
    if len({one.meets for one in choices}) < 2:
        raise InvalidReview("at least one choice must meet the criterion, and at least one must not")


def answer_of_judge(case: CaseSummary, position: int | None) -> bool | None:
    """What was decided of a criterion, or of the whole case; None where nothing was."""
    if position is None:
        return None if case.verdict in OPEN else case.success
    return {"m": True, "n": False}.get(case.statuses[position : position + 1])


# Any: details of a metric are of its own shape.
def has_split_votes(details: Mapping[str, Any] | None) -> bool:
    """Whether the usable votes of a judge, as a criterion records them, are not all the same."""
    evidence = (details or {}).get("judge")
    votes = evidence.get("votes", ()) if isinstance(evidence, Mapping) else ()
    return len({str(vote.get("answer")) for vote in votes if vote.get("status") == "usable"}) > 1


def _key(case: CaseSummary) -> CaseKey:
    return CaseKey(case.case_id, case.repeat)
