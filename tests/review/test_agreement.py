"""Agreement: against scikit-learn and published examples."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.reports.statistics import wilson
from meruit.review.agreement import (
    agreement_of,
    cohen_kappa,
    count_ratings,
    fleiss_kappa,
    gwet_ac1,
    krippendorff_alpha,
    percent_agreement,
)

CHOICES = st.sampled_from(["yes", "no", "partly"])


def pairs(rows: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"ann": one, "bob": other} for one, other in rows]


def table(yes_yes: int, yes_no: int, no_yes: int, no_no: int) -> list[dict[str, str]]:
    return pairs(
        [("y", "y")] * yes_yes + [("y", "n")] * yes_no + [("n", "y")] * no_yes + [("n", "n")] * no_no,
    )


# Fleiss (1971): ten subjects, fourteen raters, five categories.
FLEISS = (
    (0, 0, 0, 0, 14),
    (0, 2, 6, 4, 2),
    (0, 0, 3, 5, 6),
    (0, 3, 9, 2, 0),
    (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0),
    (3, 2, 6, 3, 0),
    (2, 5, 3, 2, 2),
    (6, 5, 2, 1, 0),
    (0, 2, 2, 3, 7),
)
# Krippendorff (2011): four observers, twelve units, "." where one is missing.
KRIPPENDORFF = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")


@settings(max_examples=30)
@given(st.lists(st.tuples(CHOICES, CHOICES), min_size=2, max_size=40))
def test_cohens_kappa_equals_that_of_scikit_learn(rows: list[tuple[str, str]]) -> None:
    from sklearn.metrics import cohen_kappa_score

    ours = cohen_kappa(count_ratings(pairs(rows)))
    if ours is None:
        assert len({choice for row in rows for choice in row}) == 1
    else:
        assert ours == pytest.approx(cohen_kappa_score(*zip(*rows, strict=True)), abs=1e-12)


def test_published_examples_come_out_as_published() -> None:
    fleiss = [
        {
            str(rater): choice
            for rater, choice in enumerate("".join(letter * n for letter, n in zip("abcde", row, strict=True)))
        }
        for row in FLEISS
    ]
    assert fleiss_kappa(count_ratings(fleiss)) == pytest.approx(0.210, abs=5e-4)
    units = [
        {str(observer): row[place] for observer, row in enumerate(KRIPPENDORFF) if row[place] != "."}
        for place in range(12)
    ]
    assert krippendorff_alpha(count_ratings(units)) == pytest.approx(0.743, abs=5e-4)
    # Gwet (2008): nearly all agree, and kappa is below zero.
    skewed = table(118, 5, 2, 0)
    assert gwet_ac1(count_ratings(skewed)) == pytest.approx(0.9408, abs=5e-5)
    assert cohen_kappa(count_ratings(skewed)) == pytest.approx(-0.0234, abs=5e-5)
    assert cohen_kappa(count_ratings(table(20, 5, 10, 15))) == pytest.approx(0.4)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), CHOICES, min_size=1), min_size=1, max_size=25))
def test_coefficients_are_one_only_for_full_agreement(ratings: list[dict[str, str]]) -> None:
    counted = count_ratings(ratings)
    full = all(len({*case.values()}) == 1 for case in ratings if len(case) > 1)
    for measure in (krippendorff_alpha, gwet_ac1):
        value = measure(counted)
        assert value is None or value <= 1 + 1e-12
        if value is not None and any(len(case) > 1 for case in ratings):
            assert (value == pytest.approx(1)) is full


def test_agreement_lists_all_coefficients_with_intervals() -> None:
    chance = Random(3)
    rows = []
    for _ in range(80):
        truth = chance.choice("yn")
        rows.append({"ann": truth, "bob": truth if chance.random() < 0.9 else chance.choice("yn")})
    found = agreement_of([*rows, {"ann": "y"}])
    assert (found.cases, found.labellers, found.labels) == (80, 2, 160)
    assert found.agreed == percent_agreement(count_ratings(rows))
    for one in (found.cohen, found.fleiss, found.krippendorff, found.gwet):
        assert one.value is not None
        assert one.interval is not None
        assert one.interval.low < one.value < one.interval.high <= 1
    assert found == agreement_of([*rows, {"ann": "y"}])


def test_what_cannot_be_said_has_a_reason() -> None:
    three = agreement_of([{"a": "y", "b": "n", "c": "y"}, {"a": "n", "b": "n"}])
    assert three.cohen.value is None
    assert three.cohen.why_not
    assert three.fleiss.value is None
    assert three.krippendorff.interval is None
    assert three.krippendorff.why_not
    empty = agreement_of([{"a": "y"}])
    assert empty.cases == 0
    assert empty.agreed is None
    assert empty.gwet.why_not
    same = agreement_of(table(40, 0, 0, 0))
    assert same.agreed == 1
    assert same.cohen.value is None
    rare = agreement_of(table(60, 1, 0, 0))
    assert rare.cohen.value == 0
    assert rare.cohen.interval is None
    assert cohen_kappa([]) is None
    assert fleiss_kappa([]) is None


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [((20, 5, 10, 15), 0.4), ((520, 80, 60, 340), 0.7107438016528925), ((95, 2, 2, 1), 0.3127147766323021)],
)
def test_kappa_agrees_with_statsmodels(counts: tuple[int, int, int, int], kappa: float) -> None:
    """Figures of `cohens_kappa`, statsmodels 0.15.0."""
    assert cohen_kappa(count_ratings(table(*counts))) == pytest.approx(kappa)


@pytest.mark.parametrize(
    ("met", "cases", "interval"),
    [
        (52, 60, (0.7583484032350039, 0.9308589051941303)),
        (0, 12, (0.0, 0.24249400665524096)),
        (99, 100, (0.9455138038212946, 0.9982325679358593)),
    ],
)
def test_rates_agree_with_statsmodels(met: int, cases: int, interval: tuple[float, float]) -> None:
    """Figures of `proportion_confint` by Wilson's method, statsmodels 0.15.0."""
    found = wilson(met / cases, cases)
    assert (found.low, found.high) == pytest.approx(interval, abs=1e-9)


def test_fleiss_agrees_with_statsmodels() -> None:
    ratings = [
        {
            str(place): word
            for place, word in enumerate(word for word, n in zip("abcde", row, strict=True) for _ in range(n))
        }
        for row in FLEISS
    ]
    assert fleiss_kappa(count_ratings(ratings)) == pytest.approx(0.20993070442195522)
