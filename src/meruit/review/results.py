"""What labels say of an evaluation: calibration of each criterion, corrected rates, corrected differences."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.reader import CaseDetail, CaseFilter, Evaluations
from meruit.judges.records import CalibratedJudge, RecordCalibration
from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.model.time import to_micros
from meruit.model.verdict import Bounds
from meruit.model.vote import MIN_LABELS
from meruit.review.ask import is_judged
from meruit.review.calibration import (
    Calibration,
    DriftWindow,
    JudgedLabel,
    calibrate,
    calibrate_by_tag,
    disagreements,
    find_drift,
)
from meruit.review.corrected import UNDECIDED, CorrectedMean, RatedCase, Target, correct_difference, correct_rate
from meruit.review.draw import CaseKey
from meruit.review.label import DrawKind, Label, ReviewDraw, ReviewRecord
from meruit.review.rogan_gladen import RoganGladen, correct_by_error_rates
from meruit.review.service import Reviews, answer_of_judge
from meruit.review.store import read
from meruit.review.truth import CaseLabels, answer_of
from meruit.store.store import Store

Truths = Mapping[CaseKey, CaseLabels]


class CorrectedRate(Record, frozen=True):
    """A judged pass rate beside what people's labels make of it."""

    criterion: str | None
    """None for the whole verdict."""
    judged: bool
    """Whether a model judges it."""
    calibrated: bool
    """Whether there are at least `min_labels` random labels."""
    min_labels: int
    these: CorrectedMean
    """For the cases at hand."""
    like_these: CorrectedMean
    """For all cases like these."""
    by_error_rates: RoganGladen
    """By the judge's rates on these labels, after Rogan and Gladen."""
    calibration: Calibration
    bounds: Bounds | None = None
    """The estimate for the cases at hand if every undecided case were not met, and if it were met."""
    bounds_interval: ConfidenceInterval | None = None
    """From the lower end of the interval of the low bound to the upper end of that of the high one."""


class CorrectedDifference(Record, frozen=True):
    """The second evaluation minus the first, corrected by the labels that both have."""

    criterion: str | None
    first: str
    second: str
    these: CorrectedMean
    like_these: CorrectedMean


class JudgeCalibration(Record, frozen=True):
    """What labels say of one version of a judge, or of one criterion."""

    name: str
    version: str | None
    """Of the judge; None where a rule, not a model, decides."""
    criterion: str | None
    evaluations: tuple[str, ...]
    calibrated: bool
    min_labels: int
    calibration: Calibration
    tags: Mapping[str, Mapping[str, Calibration]]
    drift: list[DriftWindow]
    disagreements: list[JudgedLabel]


class JudgeStatus(Record, frozen=True):
    """A judged criterion of an evaluation, and how well its judge is known from labels of any evaluation."""

    criterion: str
    judge: str | None
    version: str | None
    labels: int
    """Random labels of this version of the judge."""
    kappa: float | None
    calibrated: bool
    min_labels: int


class ReviewResults:
    """The results of one tenant's reviews."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = store, tenant
        self._reviews = Reviews(store, tenant)
        self._evaluations = Evaluations(store, tenant)

    def count_records(self) -> tuple[int, int]:
        """How many reviews and labels were ever recorded; what labels say of recorded cases changes with them only."""
        with self._store.database.reading() as connection:
            return read.count_records(connection, self._tenant)

    def labelled_criteria(self, evaluation: EvaluationRecord) -> list[str | None]:
        """The criteria of an evaluation that reviews are about; None for the whole verdict."""
        return [*dict.fromkeys(review.criterion for review in self._reviews_of(evaluation))]

    def judge_statuses(self, evaluation: EvaluationRecord, min_labels: int = MIN_LABELS) -> list[JudgeStatus]:
        """How well each judge of an evaluation is known; empty where no model judges a criterion."""
        criteria = self._evaluations.criteria(evaluation)
        judged = [name for name, one in zip(criteria.ids, criteria.criteria, strict=True) if is_judged(one)]
        if not judged:
            return []
        reviews = self._reviews.page(limit=MOST_REVIEWS)
        found = []
        for criterion in judged:
            judge, version = self._judge_of(evaluation, criterion), self._version_of(evaluation, criterion)
            several = [
                one
                for one in self.calibrations(judge or criterion, reviews, min_labels=min_labels)
                if version is not None and one.version == version
            ]
            best = max(several, key=lambda one: one.calibration.labels, default=None)
            labels = 0 if best is None else best.calibration.labels
            kappa = None if best is None else best.calibration.kappa
            found.append(
                JudgeStatus(
                    criterion=criterion,
                    judge=judge,
                    version=version,
                    labels=labels,
                    kappa=kappa,
                    calibrated=labels >= min_labels,
                    min_labels=min_labels,
                )
            )
        return found

    def _version_of(self, evaluation: EvaluationRecord, criterion: str) -> str | None:
        """The version of the judge, as its first cases record it."""
        position = self._position(evaluation, criterion)
        for detail in self._evaluations.details(evaluation, limit=FIRST_CASES):
            version = _find_recorded_version(detail, position)
            if version is not None:
                return version
        return None

    def corrected_rates(self, evaluation: EvaluationRecord, min_labels: int = MIN_LABELS) -> list[CorrectedRate]:
        """All rates of an evaluation that have labels."""
        return [
            self.corrected_rate(evaluation, criterion, min_labels=min_labels)
            for criterion in self.labelled_criteria(evaluation)
        ]

    def corrected_rate(
        self, evaluation: EvaluationRecord, criterion: str | None, *, min_labels: int = MIN_LABELS
    ) -> CorrectedRate:
        """The rate of one criterion, or of the whole verdict."""
        position = self._position(evaluation, criterion)
        truths = self._truths(evaluation, criterion)
        cases = [case for case in self._evaluations.cases(evaluation) if case.error is None]
        calibration = calibrate(_find_judged_labels(evaluation, cases, truths, position))
        rated = _rate_cases(cases, truths, position)
        answers = [answer_of_judge(case, position) for case in cases]
        found = CorrectedRate(
            criterion=criterion,
            judged=self._is_judged(evaluation, criterion),
            calibrated=calibration.labels >= min_labels,
            min_labels=min_labels,
            these=correct_rate(rated, Target.THESE),
            like_these=correct_rate(rated, Target.LIKE_THESE),
            by_error_rates=correct_by_error_rates(
                met=sum(answer is True for answer in answers),
                cases=sum(answer is not None for answer in answers),
                true_positive=calibration.matrix.true_positive,
                false_negative=calibration.matrix.false_negative,
                true_negative=calibration.matrix.true_negative,
                false_positive=calibration.matrix.false_positive,
            ),
            calibration=calibration,
        )
        if not calibration.cannot_tell:
            return found
        low = correct_rate(_rate_cases(cases, truths, position, cannot_tell=0.0))
        high = correct_rate(_rate_cases(cases, truths, position, cannot_tell=1.0))
        if low.estimate is None or high.estimate is None:
            return found
        outer = None
        if low.interval is not None and high.interval is not None:
            outer = ConfidenceInterval(low.interval.low, high.interval.high)
        return msgspec.structs.replace(found, bounds=Bounds(low.estimate, high.estimate), bounds_interval=outer)

    def corrected_difference(
        self, first: EvaluationRecord, second: EvaluationRecord, criterion: str | None
    ) -> CorrectedDifference:
        """The difference of two evaluations over their common cases; labels count where both have one."""
        sides = []
        for one in (first, second):
            position = self._position(one, criterion)
            cases = {CaseKey(case.case_id, case.repeat): case for case in self._evaluations.cases(one)}
            sides.append((position, cases, self._truths(one, criterion)))
        (place_a, cases_a, truths_a), (place_b, cases_b, truths_b) = sides
        pairs = []
        for key, before in cases_a.items():
            after = cases_b.get(key)
            if after is None or before.error is not None or after.error is not None:
                continue
            judged = _value(answer_of_judge(after, place_b)) - _value(answer_of_judge(before, place_a))
            truth, probability = _both(truths_a.get(key), truths_b.get(key))
            pairs.append(RatedCase(judged, truth, probability, group=after.group or ""))
        return CorrectedDifference(
            criterion,
            first.name,
            second.name,
            correct_difference(pairs, Target.THESE),
            correct_difference(pairs, Target.LIKE_THESE),
        )

    def label_errors(self, evaluation: EvaluationRecord, criterion: str | None) -> list[float]:
        """Truth minus judge for each random label; for planning."""
        position, truths = self._position(evaluation, criterion), self._truths(evaluation, criterion)
        labels = _find_judged_labels(evaluation, self._evaluations.cases(evaluation), truths, position)
        return [float(one.labelled) - _value(one.judged) for one in labels if one.labelled is not None]

    def corrected_differences(self, first: EvaluationRecord, second: EvaluationRecord) -> list[CorrectedDifference]:
        """All differences for which both evaluations have labels."""
        common = [one for one in self.labelled_criteria(first) if one in self.labelled_criteria(second)]
        found = [self.corrected_difference(first, second, criterion) for criterion in common]
        return [one for one in found if one.these.labels]

    def calibrations(
        self, name: str, reviews: Sequence[ReviewRecord], *, min_labels: int = MIN_LABELS
    ) -> list[JudgeCalibration]:
        """Calibrate a judge by its name, or a criterion by its id; each version of the judge apart."""
        gathered: dict[tuple[str | None, str | None], list[tuple[str, JudgedLabel]]] = {}
        seen: set[tuple[str, str | None]] = set()
        for review in reviews:
            evaluation = self._evaluations.find(review.evaluation_id)
            about = (evaluation.id, review.criterion)
            if about in seen or not self._is_about(evaluation, review.criterion, name):
                continue
            seen.add(about)
            for version, label in self._labels_by_version(evaluation, review.criterion):
                gathered.setdefault((version, review.criterion), []).append((evaluation.name, label))
        return [
            _calibration(name, version, criterion, several, min_labels)
            for (version, criterion), several in gathered.items()
        ]

    def record(self, found: Iterable[JudgeCalibration], *, by: str) -> int:
        """Record calibrations, for payments whose terms ask for them; how many changed. Rules have no version."""
        best: dict[str, JudgeCalibration] = {}
        for one in found:
            if one.version is not None:
                known = best.get(one.version, one)
                best[one.version] = max(known, one, key=lambda each: each.calibration.labels)
        judges = tuple(
            CalibratedJudge(
                one.name,
                version,
                one.calibration.labels,
                # Beyond this, a float's noise would decide.
                None if one.calibration.kappa is None else round(one.calibration.kappa, KAPPA_DIGITS),
            )
            for version, one in best.items()
        )
        return self._store.recorder.write(RecordCalibration(self._tenant, judges, by)) if judges else 0

    def judge_names(self, reviews: Iterable[ReviewRecord]) -> list[str]:
        """The judges, or else the criteria, that these reviews are about."""
        found: list[str] = []
        for review in reviews:
            evaluation = self._evaluations.find(review.evaluation_id)
            judge = self._judge_of(evaluation, review.criterion)
            found.append(judge or review.criterion or WHOLE)
        return [*dict.fromkeys(found)]

    def _labels_by_version(
        self, evaluation: EvaluationRecord, criterion: str | None
    ) -> list[tuple[str | None, JudgedLabel]]:
        position = self._position(evaluation, criterion)
        truths = {key: one for key, one in self._truths(evaluation, criterion).items() if one.drawn}
        found = []
        wanted = CaseFilter(case_ids=tuple({key.case_id for key in truths}))
        for detail in self._evaluations.details(evaluation, wanted) if truths else ():
            results = [] if detail.result is None else detail.result.criterion_results
            evidence = (results[position].details or {}).get("judge") if position is not None and results else None
            version = evidence.get("version") if isinstance(evidence, Mapping) else None
            found += [(version, label) for label in _find_judged_labels(evaluation, [detail.summary], truths, position)]
        return found

    def _is_about(self, evaluation: EvaluationRecord, criterion: str | None, name: str) -> bool:
        return name in (self._judge_of(evaluation, criterion), criterion or WHOLE)

    def _judge_of(self, evaluation: EvaluationRecord, criterion: str | None) -> str | None:
        position = self._position(evaluation, criterion)
        if position is None:
            return None
        written = self._evaluations.criteria(evaluation).criteria[position]
        judge = written.params.get("judge") if is_judged(written) else None
        return judge if isinstance(judge, str) else None

    def _is_judged(self, evaluation: EvaluationRecord, criterion: str | None) -> bool:
        criteria = self._evaluations.criteria(evaluation)
        position = self._position(evaluation, criterion)
        chosen = criteria.criteria if position is None else criteria.criteria[position : position + 1]
        return any(map(is_judged, chosen))

    def _position(self, evaluation: EvaluationRecord, criterion: str | None) -> int | None:
        return None if criterion is None else self._evaluations.criterion_positions(evaluation, [criterion])[0]

    def _reviews_of(self, evaluation: EvaluationRecord) -> list[ReviewRecord]:
        found = self._reviews.page(evaluation=evaluation, limit=MOST_REVIEWS)
        return sorted(found, key=lambda review: review.id)

    def _truths(self, evaluation: EvaluationRecord, criterion: str | None) -> Truths:
        """What people say of each labelled case, over all reviews of the criterion."""
        answers: dict[CaseKey, dict[str, bool | None]] = {}
        missed: dict[CaseKey, float] = {}
        strata: dict[CaseKey, str] = {}
        drawn_by: dict[CaseKey, str] = {}
        for review in self._reviews_of(evaluation):
            if review.criterion != criterion:
                continue
            draws, labels = self._reviews.draws(review), self._reviews.labels(review)
            done = _share_done(draws, labels)
            by_number = {draw.number: draw for draw in draws}
            for label in labels:
                draw = by_number[label.number]
                key = CaseKey(draw.case_id, draw.repeat)
                answers.setdefault(key, {})[label.labeller] = answer_of(review.terms, label.choice)
            for draw in draws:
                if draw.probability is not None:
                    key = CaseKey(draw.case_id, draw.repeat)
                    reached = draw.probability * done[draw.stratum]
                    missed[key] = missed.get(key, 1.0) * (1 - reached)
                    strata[key] = f"{strata.get(key, '')}/{review.id}:{draw.stratum}"
                    drawn_by[key] = f"{drawn_by.get(key, '')}/{review.terms.same_cases_as or review.id}"
        return {
            key: CaseLabels(
                answer,
                drawn=key in missed,
                probability=1 - missed.get(key, 0.0),
                stratum=strata.get(key, ""),
                drawn_by=drawn_by.get(key, ""),
            )
            for key, answer in answers.items()
        }


def unmet_requirements(
    name: str, labels: int, kappa: float | None, *, min_kappa: float | None, min_labels: int | None
) -> list[str]:
    """What a judge lacks of what a pipeline or terms ask for."""
    found = []
    if min_labels is not None and labels < min_labels:
        found.append(f"the judge {name} has {labels} random labels, fewer than {min_labels}")
    if min_kappa is not None and (kappa is None or kappa < min_kappa):
        known = "is not known" if kappa is None else f"is {kappa:.2f}"
        found.append(f"the kappa of the judge {name} {known}, under {min_kappa:g}")
    return found


WHOLE = "verdict"
"""How the whole verdict is named where a criterion could be."""
KAPPA_DIGITS = 6
MOST_REVIEWS = 500
"""Reviews that are read together."""
FIRST_CASES = 20
"""Cases in which the version of a judge is looked for."""


def _find_recorded_version(detail: CaseDetail, position: int | None) -> str | None:
    """The version of the judge of a criterion; None where no model judged it."""
    results = [] if detail.result is None else detail.result.criterion_results
    if position is None or position >= len(results):
        return None
    evidence = (results[position].details or {}).get("judge")
    version = evidence.get("version") if isinstance(evidence, Mapping) else None
    return version if isinstance(version, str) else None


def _share_done(draws: Sequence[ReviewDraw], labels: Sequence[Label]) -> dict[str, float]:
    """The share of the random draws of each stratum that have a label: the queue's order is random too."""
    labelled = {label.number for label in labels}
    drawn: dict[str, list[bool]] = {}
    for draw in draws:
        if draw.kind is DrawKind.RANDOM:
            drawn.setdefault(draw.stratum, []).append(draw.number in labelled)
    return {stratum: sum(done) / len(done) for stratum, done in drawn.items()}


def _find_judged_labels(
    evaluation: EvaluationRecord, cases: Iterable[CaseSummary], truths: Truths, position: int | None
) -> list[JudgedLabel]:
    started = to_micros(evaluation.started_at)
    found = []
    for case in cases:
        labels = truths.get(CaseKey(case.case_id, case.repeat))
        if labels is not None and labels.drawn:
            found.append(
                JudgedLabel(
                    case.case_id,
                    answer_of_judge(case, position),
                    labels.truth,
                    labels.probability,
                    case.tags,
                    at_micros=started + case.seq,
                )
            )
    return found


def _rate_cases(
    cases: Iterable[CaseSummary], truths: Truths, position: int | None, cannot_tell: float | None = None
) -> list[RatedCase]:
    """The cases for the estimator; those that people did not decide are left out of the labels, or get a value."""
    drawn = {key: one for key, one in truths.items() if one.drawn}
    decided: dict[str, list[bool]] = {}
    for one in drawn.values():
        decided.setdefault(one.stratum, []).append(one.truth is not None)
    found = []
    for case in cases:
        labels = drawn.get(CaseKey(case.case_id, case.repeat))
        truth = None if labels is None else labels.truth
        value = cannot_tell if truth is None else float(truth)
        if labels is None or value is None:
            found.append(RatedCase(_value(answer_of_judge(case, position)), group=case.group or ""))
            continue
        sides = decided[labels.stratum]
        share = sum(sides) / len(sides) if cannot_tell is None else 1.0
        found.append(
            RatedCase(
                _value(answer_of_judge(case, position)),
                value,
                labels.probability * share,
                labels.stratum,
                group=case.group or "",
            )
        )
    return found


def _value(answer: bool | None) -> float:  # noqa: FBT001 - a value, not a switch
    return UNDECIDED if answer is None else float(answer)


def _both(first: CaseLabels | None, second: CaseLabels | None) -> tuple[float | None, float]:
    """The difference that people see, and the probability of knowing it."""
    if first is None or second is None or not (first.drawn and second.drawn):
        return None, 1.0
    before, after = first.truth, second.truth
    if before is None or after is None:
        return None, 1.0
    together = first.drawn_by == second.drawn_by
    chances = (first.probability, second.probability)
    return float(after) - float(before), min(chances) if together else chances[0] * chances[1]


def _calibration(
    name: str,
    version: str | None,
    criterion: str | None,
    several: Sequence[tuple[str, JudgedLabel]],
    min_labels: int,
) -> JudgeCalibration:
    labels = [label for _, label in several]
    found = calibrate(labels)
    return JudgeCalibration(
        name=name,
        version=version,
        criterion=criterion,
        evaluations=tuple(dict.fromkeys(evaluation for evaluation, _ in several)),
        calibrated=found.labels >= min_labels,
        min_labels=min_labels,
        calibration=found,
        tags=calibrate_by_tag(labels),
        drift=find_drift(labels),
        disagreements=disagreements(labels),
    )
