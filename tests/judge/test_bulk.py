"""Works with equal evidence share a conclusion: to the byte what each alone would get."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.judge import bulk
from meruit.judge.bulk import Conclusions, NumberedEvidence, NumberlessConclusions
from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.result_template import (
    ResultGaps,
    ResultTemplate,
    encode_text,
    encode_time,
    split_result,
    take_numbers,
    template_of,
    write_numbers,
)
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Evidence, Fault, Measured, Missing, Provenance, Skipped
from meruit.model.verdict import VerificationResult

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
# Keys and texts that look like those of a result.
TEXTS = st.sampled_from(['x","success":', "input_digest", ',"verified_at":"', "verified_at", "\\", '"', "é\u2028", ""])
DETAILS = st.none() | st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=2), max_size=3)
VALUES = st.sampled_from([0, 1, 0.0, -0.0, 1.0, True, False, 0.5, 1e300, math.nan, math.inf, "text", [1, "a"]])
EVIDENCE = st.one_of(
    VALUES,
    st.builds(Measured, VALUES, DETAILS, st.none() | st.just(Provenance.CLAIMED)),
    st.builds(Missing, TEXTS, st.just(Cause.METRIC_MISSING), st.just(Fault.AGENT), DETAILS),
    st.builds(Skipped, TEXTS),
)
DIGESTS = st.none() | st.sampled_from(["0" * 64, "ab" * 32])


def encode_number(number: float) -> bytes:
    return msgspec.json.encode(number)


def plan(axis: str = "a", partial: bool = False, *, one_slot: bool = False) -> Plan:
    criteria: list[dict[str, Any]] = [
        {
            "metric": "m" if one_slot else f"m{n}",
            "id": f"c{n}",
            "metric_type": "numeric",
            "comparison": "gte",
            "threshold": 0.5,
            "axis": axis,
        }
        for n in range(2)
    ]
    whole = {"criteria": criteria, "aggregation": "weighted" if partial else "all"}
    return compile_plan(SuccessCriteria.model_validate(whole), lambda _name: Trait())


@given(
    st.lists(st.lists(EVIDENCE, min_size=2, max_size=2), min_size=1, max_size=5),
    st.text(max_size=8) | TEXTS,
    st.lists(DIGESTS, min_size=3, max_size=3),
    st.booleans(),
)
def test_a_shared_conclusion_is_to_the_byte_the_works_own(
    works: list[list[Evidence]], name: str, digests: list[str | None], partial: bool
) -> None:
    criteria = plan("verified_at", partial)
    versions = {"engine": "1", "input_digest": "2"}
    known = Conclusions(criteria, versions, lambda result: result.exact)
    for moment, evidence in enumerate(works):
        at = NOW + timedelta(microseconds=moment)
        alone = conclude(criteria, evidence, Circumstances(name, at, digests[0], digests[1], digests[2], versions))
        shared = known.of(evidence)
        if shared is None:
            assert any(isinstance(getattr(one, "value", one), float | list) for one in evidence)
            continue
        gaps = ResultGaps(encode_text(name), encode_time(at), *map(encode_text, digests))
        assert shared.template.fill(gaps) == alone.to_json()
        assert shared.shared == alone.exact
        assert split_result(alone.to_json()) == (shared.template, gaps)


def test_equal_evidence_is_concluded_once_and_alike_values_are_not_equal() -> None:
    made: list[VerificationResult] = []
    known = Conclusions(plan(), {}, made.append)
    for value in (1, 1.0, True, 1, 1.0, True):
        known.of([value, 0.5])
    assert len(made) == 3


def test_conclusions_are_forgotten_rather_than_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_CONCLUSIONS", 2)
    made: list[VerificationResult] = []
    known = Conclusions(plan(), {}, made.append)
    for value in (0.1, 0.2, 0.3, 0.1, 0.3):
        known.of([value, value])
    assert len(made) == 4


def test_a_result_of_another_form_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "template_of", lambda _result: None)
    assert Conclusions(plan(), {}, repr).of([0.1, 0.2]) is None


def test_what_to_json_does_not_write_is_not_split() -> None:
    written = conclude(plan(), [0.1, 0.9], Circumstances("c", NOW)).to_json()
    assert split_result(written) is not None
    for wrong in (
        b"",
        b"{}",
        written[20:],
        written.replace(b'"contract_id"', b'"other"'),
        written.replace(b'"success"', b'"other"'),
        written.replace(b'"verified_at"', b'"other"'),
        written.replace(b'"input_digest"', b'"other"'),
        written.replace(b'"output_digest":null', b'"output_digest":"00"'),
    ):
        assert split_result(wrong) is None
    assert template_of(VerificationResult.from_json(written)) is not None


@given(
    st.lists(st.lists(EVIDENCE, min_size=2, max_size=2), min_size=1, max_size=5),
    st.lists(st.sampled_from(["0" * 64, "ab" * 32]), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_a_conclusion_without_numbers_is_filled_to_the_works_own(
    works: list[list[Evidence]], digests: list[str], partial: bool, one_slot: bool
) -> None:
    criteria = plan("verified_at", partial, one_slot=one_slot)
    versions = {"engine": "1", "input_digest": "2"}
    known = NumberlessConclusions(criteria, versions, lambda result: result.exact)
    for moment, drawn in enumerate(works):
        evidence = [drawn[0], drawn[0]] if one_slot else drawn
        at = NOW + timedelta(microseconds=moment)
        alone = conclude(criteria, evidence, Circumstances("out_1", at, digests[0], digests[1], digests[2], versions))
        found = known.of(evidence)
        if found is None:
            assert any(isinstance(getattr(one, "value", one), float | list) for one in evidence)
            continue
        shared, numbers = found
        written = [encode_number(number) for number in numbers]
        hashes = [digest.encode() for digest in digests]
        assert shared.write(b"out_1", encode_time(at), written, *hashes) == alone.to_json()
        gaps = ResultGaps(encode_text("out_1"), encode_time(at), *map(encode_text, digests))
        assert shared.template.fill(gaps, written) == alone.to_json()
        assert shared.shared == alone.exact
        filled = shared.put_numbers(numbers)
        assert [one.value for one in filled.criterion_results] == [one.value for one in alone.criterion_results]
        assert filled.metrics == alone.metrics


def test_numbers_that_meet_the_same_criteria_are_concluded_once() -> None:
    made: list[VerificationResult] = []
    known = NumberlessConclusions(plan(), {}, made.append)
    for value in (1, 1.0, 0.7, 10**9, 0.5):
        known.of([value, 0.1])
    assert len(made) == 1
    for other in (0.4, True, True, "x", Measured(0.7, {"a": 1}), Measured(0.8, {"a": 1}), Measured(0.8, {"a": 1.0})):
        known.of([other, 0.1])
    assert len(made) == 6


def test_conclusions_without_numbers_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_CONCLUSIONS", 2)
    made: list[VerificationResult] = []
    known = NumberlessConclusions(plan(), {}, made.append)
    for value in (0.1, 0.9, "a", "a", 0.1):
        known.of([value, 0.1])
    assert len(made) == 4


def test_a_result_that_has_no_template_is_concluded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "template_of", lambda _result: None)
    assert NumberlessConclusions(plan(), {}, str).of([0.7, 0.1]) is None


@given(st.lists(EVIDENCE, min_size=2, max_size=2), st.booleans(), st.booleans())
def test_numbers_that_are_taken_from_a_result_are_put_back(evidence: list[Evidence], partial: bool, one: bool) -> None:
    drawn = [evidence[0]] * 2 if one else evidence
    written = conclude(plan("verified_at", partial, one_slot=one), drawn, Circumstances("c", NOW)).to_json()
    found = split_result(written)
    assert found is not None
    lacking, numbers = take_numbers(found[0])
    assert lacking.fill(found[1], write_numbers(numbers)) == written
    assert lacking.lacking() == len(numbers)
    assert take_numbers(lacking) == (lacking, ())


def test_results_with_other_numbers_share_a_template() -> None:
    lacking = {
        take_numbers(
            template_of(conclude(plan(), [0.6, value], Circumstances("c", NOW))) or ResultTemplate(b"", b"", b"")
        )[0]
        for value in (0.7, 1, 1e300, 0.9)
    }
    assert len(lacking) == 1


@pytest.mark.parametrize("value", [b"1.50", b"1e999", b"00"])
def test_a_number_that_is_written_otherwise_stays(value: bytes) -> None:
    judged = b',"success":true,"metrics":{},"criterion_results":[{"metric":"m","value":%b,"threshold":1}]' % value
    whole = ResultTemplate(judged, b"", b"")
    assert take_numbers(whole) == (whole, ())
    assert take_numbers(ResultTemplate(b"", b"", b"")) == (ResultTemplate(b"", b"", b""), ())


@given(
    st.lists(EVIDENCE, min_size=2, max_size=2),
    st.lists(st.lists(st.sampled_from([0, 1, 0.5, 0.7, 10**15, 2**70, 1e300]), min_size=2, max_size=2), min_size=1),
    st.sets(st.sampled_from([0, 1])),
    st.sampled_from([(0, 1), (1, 0)]),
)
def test_numbered_evidence_concludes_what_each_work_would(
    evidence: list[Evidence], works: list[list[float]], numbered: set[int], order: tuple[int, int]
) -> None:
    lacking: list[Evidence] = [0.0, Measured(0.0, {"a": 1})]
    drawn = [lacking[position] if position in numbered else one for position, one in enumerate(evidence)]
    places = {position: order[position] for position in numbered}
    criteria = plan("verified_at")
    known = NumberedEvidence(criteria, {}, drawn, places, lambda result: result.exact, lambda result: result)
    assert known.picked == tuple(places[position] for position in sorted(places))
    for numbers in works:
        alone = conclude(
            criteria,
            [
                one
                if position not in places
                else Measured(numbers[places[position]], {"a": 1})
                if position
                else numbers[places[position]]
                for position, one in enumerate(drawn)
            ],
            Circumstances("out_1", NOW),
        )
        found = known.of(numbers)
        assert known.pick(numbers) == [numbers[place] for place in known.picked]
        if found is None:
            assert any(numbers[place] == 2**70 for place in known.picked)
            continue
        written = [encode_number(numbers[place]) for place in known.picked]
        made = found.write(b"out_1", encode_time(NOW), written, b"x", b"y", b"z")
        template = template_of(alone)
        assert template is not None
        assert made == template.fill(ResultGaps(b'"out_1"', encode_time(NOW), b'"x"', b'"y"', b'"z"'))
        assert found.shared == alone.exact


def test_numbered_evidence_is_concluded_once_for_what_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[VerificationResult] = []
    whole = criteria_by_text()
    known = NumberedEvidence(plan(), {}, [0.0, 0.9], {0: 0}, made.append, lambda result: result)
    for number in (0.1, 0.2, 0.9, 0.4):
        known.of([number])
    assert len(made) == 2
    monkeypatch.setattr(bulk, "MAX_CONCLUSIONS", 1)
    known = NumberedEvidence(plan(), {}, [0.0, 0.9], {0: 0}, made.append, lambda result: result)
    for number in (0.1, 0.9, 0.1):
        known.of([number])
    assert len(made) == 5
    assert NumberedEvidence(whole, {}, [0.0], {0: 0}, repr, lambda result: result).of([0.5]) is None


def criteria_by_text() -> Plan:
    criteria = [{"metric": "m", "metric_type": "custom", "comparison": "eq", "threshold": "yes"}]
    return compile_plan(SuccessCriteria.model_validate({"criteria": criteria}), lambda _name: Trait())


def test_a_template_is_filled_with_the_values_that_it_lacks() -> None:
    gaps = ResultGaps(*[b"1"] * 5)
    lacking = ResultTemplate(b"a\x001\x00b\x000\x00c", b"", b"")
    assert lacking.with_values([b"x", b"y"]).judged == b"aybxc"
    assert lacking.fill(gaps, [b"x", b"y"]) == ResultTemplate(b"aybxc", b"", b"").fill(gaps)
    for values in ([], [b"x"]):
        with pytest.raises(ValueError, match=str(len(values))):
            lacking.fill(gaps, values)
