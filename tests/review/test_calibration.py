"""Calibration of a judge by labels."""

from random import Random

import pytest

from meruit.review.calibration import JudgedLabel, calibrate, calibrate_by_tag, disagreements, find_drift


def labels(counts: dict[tuple[bool | None, bool | None], int], *, probability: float = 0.1) -> list[JudgedLabel]:
    return [
        JudgedLabel(f"c{judged}{truth}{number}", judged, truth, probability, at_micros=number)
        for (judged, truth), times in counts.items()
        for number in range(times)
    ]


def test_rates_are_those_of_the_matrix() -> None:
    from scipy import stats  # type: ignore[import-untyped]  # scipy has no types

    found = calibrate(
        labels(
            {(True, True): 45, (False, True): 5, (False, False): 24, (True, False): 6, (None, True): 3, (True, None): 2}
        )
    )
    assert found.labels == found.matrix.total == 80
    assert (found.matrix.true_positive, found.matrix.false_positive) == (45, 6)
    assert (found.matrix.false_negative, found.matrix.true_negative) == (5, 24)
    assert (found.undecided, found.cannot_tell) == (3, 2)
    for rate, right, of in ((found.tpr, 45, 50), (found.tnr, 24, 30), (found.accuracy, 69, 80)):
        assert rate.value == pytest.approx(right / of)
        wilson = stats.binomtest(right, of).proportion_ci(method="wilson")
        assert rate.interval is not None
        assert (rate.interval.low, rate.interval.high) == pytest.approx((wilson.low, wilson.high))
    assert found.kappa == pytest.approx((69 / 80 - 3420 / 6400) / (1 - 3420 / 6400))
    assert found.kappa is not None
    assert found.kappa_interval is not None
    assert found.kappa_interval.low < found.kappa < found.kappa_interval.high


def test_a_case_that_was_drawn_rarely_weighs_more() -> None:
    common = labels({(True, True): 20}, probability=0.5)
    rare = [JudgedLabel(f"r{n}", False, True, 0.1) for n in range(4)]
    found = calibrate([*common, *rare])
    assert found.tpr.value == pytest.approx(40 / 80)
    assert found.tnr.value is None
    assert found.tnr.interval is None


def test_tags_are_calibrated_apart() -> None:
    rows = [
        JudgedLabel(f"c{n}", judged=n % 2 == 0, labelled=True, tags={"lang": "de" if n < 4 else "en"}) for n in range(8)
    ]
    found = calibrate_by_tag(rows)
    assert {value: one.labels for value, one in found["lang"].items()} == {"de": 4, "en": 4}


def test_disagreements_come_newest_first() -> None:
    rows = [
        JudgedLabel("old", judged=True, labelled=False, at_micros=1),
        JudgedLabel("same", judged=True, labelled=True, at_micros=2),
        JudgedLabel("new", judged=False, labelled=True, at_micros=3),
        JudgedLabel("open", None, labelled=True, at_micros=4),
    ]
    assert [one.case_id for one in disagreements(rows)] == ["new", "old"]


def test_a_judge_that_gets_worse_is_found() -> None:
    chance = Random(2)

    def worked(until: int, right: float) -> list[JudgedLabel]:
        return [
            JudgedLabel(f"c{n}", judged=True, labelled=chance.random() < right, at_micros=n)
            for n in range(until - 100, until)
        ]

    steady = find_drift([*worked(100, 0.9), *worked(200, 0.9), *worked(300, 0.9), *worked(400, 0.9)])
    assert len(steady) == 4
    assert not any(window.drifted for window in steady)
    worse = find_drift([*worked(100, 0.9), *worked(200, 0.9), *worked(300, 0.9), *worked(400, 0.5)])
    assert worse[-1].drifted
    assert worse[-1].labels == 100
    assert find_drift(worked(100, 1.0)[:15]) == []
