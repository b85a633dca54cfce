"""`metrics.json` and `runs_manifest.json`: nothing is lost on the way in and out, and every mistake is told."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import check_golden
from tests.sampling import examples

from meruit.documents.document import MAX_BYTES
from meruit.errors import DocumentError, FetchError, Problem
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    UsageRecord,
)
from meruit.model.usage import (
    Acknowledgement,
    Assurance,
    Cohort,
    Observation,
    Tokens,
    UsageCode,
    UsageStatus,
    UsageVerdict,
)
from meruit.usage.decision import decide
from meruit.usage.files import (
    is_manifest,
    manifest_with,
    parse_json,
    read_manifest,
    read_metrics,
    to_metered_run,
    with_verdict,
    write_manifest,
    write_metrics,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "usage-files"
PARTIAL = ((8389, 2837), (9819, 3098), (0, 0), (3711, 524), (0, 0), (0, 0))
COMPLETE = ((8389, 2837), (9819, 3098), (7245, 2156), (3711, 524), (5823, 1890), (4127, 1456))
"""The specification's two scenarios, step by step."""
FIRST, SECOND = "2025-10-15T09:15:00+00:00", "2025-10-15T10:16:00+00:00"


def look(at: Any, each: tuple[tuple[int, int], ...] = COMPLETE, **changes: Any) -> dict[str, Any]:
    """One attempt; a field that is changed to `...` is left out."""
    written = {
        "timestamp": at,
        "total_tokens_in": sum(one for one, _ in each),
        "total_tokens_out": sum(one for _, one in each),
        "steps_with_tokens": sum(1 for one in each if any(one)),
        "total_steps": len(each),
        "steps": [{"step": number, "tokens_in": i, "tokens_out": o} for number, (i, o) in enumerate(each, start=1)],
    }
    return {key: one for key, one in (written | changes).items() if one is not ...}


def metrics(*attempts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"run_id": "r-1", "framework": "planner", **fields, "usage_api_reconciliation": {"attempts": [*attempts]}}


def verdict_on(value: Any) -> UsageVerdict:
    file = read_metrics(json.dumps(value))
    return decide(file.run, file.observations, acknowledged=file.acknowledged)


def problems(text: Any, read: Any = read_metrics) -> Sequence[Problem]:
    with pytest.raises(DocumentError) as refused:
        read(text if isinstance(text, str | bytes) else json.dumps(text), "m.json")
    assert refused.value.name == "m.json"
    return refused.value.problems


def has_problem(found: Sequence[Problem], where: str, *values: str) -> bool:
    """Whether one of the problems is at a path that ends so, and names these values."""
    return any(one.where.endswith(where) and all(value in one.message for value in values) for one in found)


# Nothing is lost.

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_texts = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=6)
_counts = st.integers(0, 10**6)
_maybe = st.none() | _counts
_tokens = st.builds(Tokens, _counts, _counts, _maybe, _maybe, _maybe, _maybe)
_moments = st.integers(0, 10**6).map(lambda minutes: datetime(2025, 10, 15, tzinfo=UTC) + timedelta(minutes=minutes))


@st.composite
def _looks(draw: st.DrawFn) -> Observation:
    failed = draw(st.booleans())
    total = None if failed else draw(_tokens)
    steps = None
    if total is not None and draw(st.booleans()):
        steps = {"a": Tokens(total.input // 2, total.output // 2), "b": Tokens(0, total.output // 3, cached=3)}
    outside = 0 if total is None or steps is None else total.total - sum(one.total for one in steps.values())
    has_counts = not failed and draw(st.booleans())
    return Observation(
        id=draw(_texts),
        at=draw(_moments),
        total=total,
        steps=steps,
        steps_with_tokens=draw(st.integers(0, 9)) if has_counts else None,
        total_steps=draw(st.integers(0, 9)) if has_counts else None,
        unattributed=outside + draw(_counts),
        models=tuple(draw(st.lists(_texts, max_size=2))),
        cohort=draw(st.none() | st.builds(Cohort, _counts, st.none() | _tokens)),
        assurance=draw(st.sampled_from(Assurance)),
        watermark=draw(st.none() | _moments),
        error=draw(st.sampled_from(FetchError)) if failed else None,
        detail=draw(st.text(max_size=5)),
        digest=draw(st.text(max_size=5)),
        by_model=draw(st.none() | st.dictionaries(_texts, _tokens, max_size=2)),
        reported_by=draw(st.sampled_from(["", "file"])),
    )


_calls = st.builds(MeteredCall, _moments, _texts, st.none() | _tokens, st.sampled_from(CallState), _texts)
_runs = st.builds(
    MeteredRun,
    id=_texts,
    framework=_texts,
    attribution_key=st.builds(AttributionKey, st.sampled_from(AttributionKind), _texts),
    started_at=st.none() | _moments,
    ended_at=st.none() | _moments,
    steps=st.lists(
        st.builds(
            MeteredStep, _texts, succeeded=st.none() | st.booleans(), calls=st.lists(_calls, max_size=2).map(tuple)
        ),
        max_size=3,
        unique_by=lambda one: one.id,
    ).map(tuple),
    task=_texts,
    score=st.none() | st.floats(0, 1),
)


@examples(15)
@given(
    _runs, st.lists(_looks(), max_size=4), st.lists(st.builds(Acknowledgement, _moments, _texts, _texts), max_size=2)
)
def test_a_written_run_is_read_back_with_imported_observations(
    run: MeteredRun, attempts: list[Observation], acknowledged: list[Acknowledgement]
) -> None:
    verdict = decide(run.for_judging, attempts, acknowledged=acknowledged)
    record = UsageRecord(run, 1, len(attempts), verdict, acknowledged=tuple(acknowledged))
    file = read_metrics(write_metrics(record, attempts), now=max((one.at for one in acknowledged), default=None))
    heard = [
        msgspec.structs.replace(one, reported_by="file", assurance=max(one.assurance, Assurance.COHORT))
        for one in attempts
    ]
    assert sorted(file.observations, key=repr) == sorted(heard, key=repr)
    assert file.acknowledged == tuple(acknowledged)
    assert to_metered_run(file) == run
    again = decide(file.run, file.observations, acknowledged=file.acknowledged)
    assert again == decide(run.for_judging, heard, acknowledged=acknowledged)
    if not any(one.total is not None and one.assurance is Assurance.LOCAL for one in attempts):
        assert (again.status, again.code, again.tokens) == (verdict.status, verdict.code, verdict.tokens)
    assert file.run_id == run.id


@examples(15)
@given(st.dictionaries(st.text(min_size=1, max_size=6), _json, max_size=4), _json)
def test_a_verdict_changes_its_own_fields_of_a_file_and_no_other(fields: dict[str, Any], unknown: Any) -> None:
    whole = fields | metrics(look(FIRST, unknown=unknown), look(SECOND))
    whole["usage_api_reconciliation"] |= {"verification_status": "nonsense", "unknown": unknown}
    file = read_metrics(json.dumps(whole))
    written = json.loads(with_verdict(file, decide(file.run, file.observations)))
    part = written["usage_api_reconciliation"]
    verdict = decide(file.run, file.observations)
    assert (part.pop("verification_status"), part.pop("verification_message")) == ("verified", verdict.message)
    assert part.pop("imported") is True
    del whole["usage_api_reconciliation"]["verification_status"]
    assert written == whole


def test_numbers_come_out_with_every_digit() -> None:
    text = (
        '{"usage_api_reconciliation": {"attempts": []}, "a": 0.12345678901234567890123, "b": 123456789012345678901234}'
    )
    file = read_metrics(text)
    written = json.loads(with_verdict(file, decide(file.run, ())), parse_float=Decimal)
    assert written["a"] == Decimal("0.12345678901234567890123")
    assert written["b"] == 123456789012345678901234


@examples(25)
@given(st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    whole = metrics(
        look(FIRST), look(SECOND), end_time=FIRST, steps=[{"step": 1}], task="t", attribution_key={"kind": "key"}
    )
    place: Any = whole
    while True:
        key = data.draw(st.sampled_from([*place] if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_json)
    with suppress(DocumentError):
        file = read_metrics(json.dumps(whole))
        json.loads(with_verdict(file, decide(file.run, file.observations)))
        to_metered_run(file)


# What a file says is hearsay.


@given(st.sampled_from(Assurance), st.integers(0, 20))
def test_an_imported_observation_is_cohort_at_best(said: Assurance, unattributed: int) -> None:
    beyond = {"assurance": said, "unattributed": unattributed}
    both = [look(at, total_tokens_in=39_114 + 7, meruit=beyond) for at in (FIRST, SECOND)]
    file = read_metrics(json.dumps(metrics(*both)))
    assert {(one.reported_by, one.assurance) for one in file.observations} == {("file", max(said, Assurance.COHORT))}
    assert {one.unattributed for one in file.observations} == {max(7, unattributed)}
    found = decide(file.run, file.observations)
    assert found.code is UsageCode.UNATTRIBUTED
    assert found.assurance >= Assurance.COHORT


def test_a_file_may_own_more_tokens_than_its_steps_leave_over() -> None:
    both = [look(at, meruit={"unattributed": 5}) for at in (FIRST, SECOND)]
    assert verdict_on(metrics(*both)).code is UsageCode.UNATTRIBUTED


FELL = metrics(look(FIRST), look(SECOND, PARTIAL), look("2025-10-15T12:00:00Z", PARTIAL))
WORD = {"at": "2025-10-15T12:00:00Z", "by": "ada", "reason": "the provider corrected its count"}


def accepted(**changes: Any) -> dict[str, Any]:
    part = {**FELL["usage_api_reconciliation"], "acknowledged": [WORD | changes]}
    return FELL | {"usage_api_reconciliation": part}


def test_an_acknowledgement_of_a_count_that_fell_is_read() -> None:
    assert verdict_on(FELL).code is UsageCode.DECREASED
    assert verdict_on(accepted()).code is UsageCode.INCOMPLETE


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"by": ""}, "acknowledged[0].by"),
        ({"by": None}, "acknowledged[0].by"),
        ({"reason": " "}, "acknowledged[0].reason"),
        ({"at": "2025-10-15T12:00:01Z"}, "acknowledged[0].at"),
        ({"at": "2199-01-01T00:00:00Z"}, "acknowledged[0].at"),
        ({"at": "2025-10-15T12:00:00"}, "acknowledged[0].at"),
    ],
)
def test_an_acknowledgement_needs_a_name_a_reason_and_a_past_time(change: dict[str, Any], where: str) -> None:
    (found,) = problems(accepted(**change))
    assert found.where.endswith(where)


def test_an_acknowledgement_may_be_later_than_attempts_but_not_than_now() -> None:
    now = datetime(2025, 10, 15, 13, tzinfo=UTC)
    text = json.dumps(accepted(at="2025-10-15T13:00:00Z"))
    assert read_metrics(text, now=now).acknowledged[0].by == "ada"
    with pytest.raises(DocumentError) as refused:
        read_metrics(text, now=now - timedelta(seconds=1))
    assert [one.where for one in refused.value.problems] == ["usage_api_reconciliation.acknowledged[0].at"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2025-10-15T09:15:00.0000009Z", "2025-10-15T10:15:00.0000001Z"),
        (1760519700.0000007, 1760523300.0000002),
        ("2025-10-15T09:15:00Z", "2025-10-15T10:14:59.99999999Z"),
        ("2025-10-15T09:15:00Z", "2025-10-15T10:14:59,9999999Z"),
    ],
)
def test_a_time_finer_than_a_microsecond_is_refused(first: Any, second: Any) -> None:
    found = problems(metrics(look(first), look(second)))[0]
    assert found.where.endswith(".timestamp")
    assert "6 digits" in found.message


def test_microseconds_are_read_to_the_last() -> None:
    exact = "2025-10-15T09:15:00.123456Z"
    (found,) = read_metrics(json.dumps(metrics(look(exact)))).observations
    (other,) = read_metrics(json.dumps(metrics(look(1760519700.123456)))).observations
    assert found.at == other.at == datetime(2025, 10, 15, 9, 15, 0, 123456, UTC)


# The specification's scenarios, and what a person would argue about.


def test_three_of_six_steps_with_tokens_are_incomplete() -> None:
    found = verdict_on(metrics(look(FIRST, PARTIAL), look(SECOND, PARTIAL)))
    assert found.status is UsageStatus.WARNING
    assert (found.code, found.steps_with_tokens, found.total_steps) == (UsageCode.INCOMPLETE, 3, 6)
    assert found.tokens == Tokens(21919, 6459)
    assert found.empty_steps == ("3", "5", "6")


@pytest.mark.parametrize("steps", [..., None])
def test_six_of_six_steps_with_tokens_are_verified_listed_or_not(steps: Any) -> None:
    found = verdict_on(metrics(look(FIRST, steps=steps), look(SECOND, steps=steps)))
    assert (found.status, found.code) == (UsageStatus.VERIFIED, UsageCode.STABLE)
    assert found.minutes == pytest.approx(60.5, abs=1)
    assert found.total_steps == 6


@pytest.mark.parametrize(
    ("second", "status"),
    [("2025-10-15T10:15:00Z", UsageStatus.VERIFIED), ("2025-10-15T10:14:59Z", UsageStatus.PENDING)],
)
def test_sixty_minutes_verify_and_a_second_less_does_not(second: str, status: UsageStatus) -> None:
    assert verdict_on(metrics(look(FIRST), look(second))).status is status


def test_an_attempt_that_is_given_twice_is_one_and_two_at_one_time_contradict_each_other() -> None:
    once = verdict_on(metrics(look(FIRST), look(SECOND)))
    assert verdict_on(metrics(look(SECOND), look(FIRST), look("2025-10-15T12:16:00+02:00"), look(SECOND))) == once
    found = verdict_on(metrics(look(FIRST), look(FIRST, PARTIAL)))
    assert (found.status, found.code) == (UsageStatus.WARNING, UsageCode.CONFLICTING_EVIDENCE)
    assert FIRST in found.message


def test_a_failed_attempt_needs_no_counts_and_may_stand_beside_another_of_its_time() -> None:
    failed = {"timestamp": FIRST, "error": "rate_limited"}
    file = read_metrics(json.dumps(metrics(failed, failed | {"error": "timeout"}, failed, look(FIRST), look(SECOND))))
    assert [one.error for one in file.observations[:2]] == [FetchError.RATE_LIMITED, FetchError.TIMEOUT]
    assert len({one.id for one in file.observations}) == 4
    assert decide(file.run, file.observations).status is UsageStatus.VERIFIED


def test_a_file_without_an_end_ends_by_its_first_attempt() -> None:
    assert verdict_on(metrics(look(FIRST))).code is UsageCode.FIRST
    assert verdict_on(metrics(look(FIRST), end_time=None)).code is UsageCode.FIRST
    assert verdict_on(metrics()).code is UsageCode.NOT_STARTED
    assert verdict_on(metrics(look(FIRST), end_time="2025-10-15T09:16:00Z")).code is UsageCode.NOT_STARTED
    both_names = metrics(look(FIRST), end_timestamp=1760519700, end_time=FIRST)
    assert verdict_on(both_names).code is UsageCode.FIRST


@pytest.mark.parametrize(
    "written",
    [
        "2025-10-15T09:15:00Z",
        "2025-10-15 09:15Z",
        "2025-10-15T11:15:00.000+02:00",
        "2025-10-15t09:15:00,0 z",
        "2025-10-15T04:15:00-0500",
        1760519700,
        1760519700.0,
    ],
)
def test_a_time_may_be_written_in_several_ways(written: Any) -> None:
    (found,) = read_metrics(json.dumps(metrics(look(written)))).observations
    assert found.at == datetime(2025, 10, 15, 9, 15, tzinfo=UTC)
    assert found.id == FIRST


def test_calls_and_cached_tokens_are_read() -> None:
    steps = [{"step": "plan", "tokens_in": 10, "tokens_out": 5, "api_calls": 2, "cached_tokens": 4}]
    one = look(FIRST, ((10, 5),), total_api_calls=2, total_cached_tokens=4, steps=steps)
    (found,) = read_metrics(json.dumps(metrics(one))).observations
    assert found.total == Tokens(10, 5, 2, 4)
    assert found.steps == {"plan": Tokens(10, 5, 2, 4)}


def test_tokens_beyond_the_steps_belong_to_none_of_them() -> None:
    more = [look(at, total_tokens_in=39_114 + 7) for at in (FIRST, SECOND)]
    found = verdict_on(metrics(*more))
    assert found.code is UsageCode.UNATTRIBUTED
    assert " 7 tokens" in found.message


def test_a_declared_step_is_expected_though_no_attempt_has_it() -> None:
    steps = [{"step": number} for number in range(1, 8)]
    both = look(FIRST), look(SECOND)
    found = verdict_on(metrics(*both, steps=steps))
    assert (found.code, found.steps_with_tokens, found.total_steps) == (UsageCode.INCOMPLETE, 6, 7)
    steps[6]["expects_usage"] = False
    assert verdict_on(metrics(*both, steps=steps)).status is UsageStatus.VERIFIED
    unnamed = [{"success": True} for _ in range(6)]
    assert verdict_on(metrics(*both, steps=unnamed)).status is UsageStatus.VERIFIED


def test_a_run_that_declares_no_usage_is_verified_at_zero() -> None:
    none = look(FIRST, (), steps=None), look(SECOND, (), steps=None)
    assert verdict_on(metrics(*none)).status is UsageStatus.DATA_NOT_AVAILABLE
    assert verdict_on(metrics(*none, declares_no_usage=True)).status is UsageStatus.VERIFIED


def test_the_bytes_may_begin_with_a_mark_of_their_order() -> None:
    assert read_metrics(b"\xef\xbb\xbf" + json.dumps(metrics()).encode()).run_id == "r-1"


# What is recorded of a file.


def test_a_files_run_is_recorded_with_what_its_steps_say() -> None:
    whole = {
        "run_id": 7,
        "framework": "planner",
        "task": "todo",
        "source": "openai-main",
        "attribution_key": {"kind": "key", "value": "key_1"},
        "score": 0.5,
        "success": True,
        "start_timestamp": 1760519700,
        "end_time": "2025-10-15T09:20:00Z",
        "steps": [
            {"step_number": 1, "success": True, "tokens_in": 10, "tokens_out": 5, "start_time": "2025-10-15T09:16:00Z"},
            {"name": "look up", "success": "yes", "tokens_in": 0, "tokens_out": 0},
            {"expects_usage": False},
        ],
        "AUTR": 0.3,
    }
    run = to_metered_run(read_metrics(json.dumps(whole), with_attempts=False))
    assert (run.id, run.framework, run.task, run.source, run.score) == ("7", "planner", "todo", "openai-main", 0.5)
    assert run.attribution_key == AttributionKey(AttributionKind.KEY, "key_1")
    assert [one.id for one in run.steps] == ["1", "look up", "3"]
    # Nothing at all is what stands there before anything is known.
    assert [one.local for one in run.steps] == [Tokens(10, 5), None, None]
    assert [one.succeeded for one in run.steps] == [True, None, None]
    assert run.steps[0].started_at == datetime(2025, 10, 15, 9, 16, tzinfo=UTC)


def test_counts_of_steps_after_an_attempt_are_not_the_runs_own() -> None:
    whole = metrics(look(FIRST), steps=[{"step": 1, "tokens_in": 10, "tokens_out": 5}])
    assert [one.local for one in to_metered_run(read_metrics(json.dumps(whole))).steps] == [None]


@pytest.mark.parametrize(
    ("fields", "where", "value"),
    [
        ({"run_id": None}, "", "'run_id'"),
        ({"framework": None}, "", "'framework'"),
        ({"score": 2}, "score", "1.0"),
        ({"attribution_key": {"kind": "kee"}}, "attribution_key.kind", "'kee'"),
        ({"task": ["a"]}, "task", "`array`"),
        ({"steps": [{"step": 1, "tokens_in": -1, "tokens_out": 0}]}, "steps[0].tokens_in", "-1"),
    ],
)
def test_a_run_that_cannot_be_recorded_is_refused(fields: dict[str, Any], where: str, value: str) -> None:
    file = read_metrics(json.dumps({"run_id": "r", "framework": "f"} | fields), "m.json", with_attempts=False)
    with pytest.raises(DocumentError) as refused:
        to_metered_run(file)
    assert {one.line for one in refused.value.problems} == {1}
    assert has_problem(refused.value.problems, where, value)


# Every problem is listed, with its path and line.

WRONG_EVERYWHERE = """{
      "run_id": "",
      "usage_api_reconciliation": {
        "attempts": [
          {"timestamp": "2025-10-15T09:15:00", "total_tokens_in": -1, "total_tokens_out": 1.5,
           "steps_with_tokens": true, "total_steps": "6"},
          {"total_tokens_in": 1},
          7
        ]
      }
    }"""


def test_every_problem_is_listed_at_once_with_its_path_and_line() -> None:
    at = "usage_api_reconciliation.attempts"
    assert [(one.line, one.where) for one in problems(WRONG_EVERYWHERE)] == [
        (2, "run_id"),
        (5, f"{at}[0].timestamp"),
        (5, f"{at}[0].total_tokens_in"),
        (5, f"{at}[0].total_tokens_out"),
        (6, f"{at}[0].steps_with_tokens"),
        (6, f"{at}[0].total_steps"),
        (7, f"{at}[1]"),
        (7, f"{at}[1]"),
        (7, f"{at}[1]"),
        (7, f"{at}[1]"),
        (8, f"{at}[2]"),
    ]


NOT_METRICS = [
    ("", "", ""),
    ("[]", "", "list"),
    ("null", "", "mapping"),
    ("{}", "", "'usage_api_reconciliation'"),
    ('{"usage_api_reconciliation": {}}', "usage_api_reconciliation", "'attempts'"),
    ('{"usage_api_reconciliation": []}', "usage_api_reconciliation", "list"),
    ('{"usage_api_reconciliation": {"attempts": {}}}', "usage_api_reconciliation.attempts", "mapping"),
    ('{"a": 1, "a": 2}', "", "'a'"),
    ('{"a": NaN}', "", "NaN"),
    ('{"a": 1} // a comment', "", "JSON"),
    ("usage_api_reconciliation: {}", "", "JSON"),
    (b'{"a": "\xff"}', "", "UTF-8"),
    (b"\xff\xfe{\x00}\x00", "", "UTF-16"),
]


@pytest.mark.parametrize(("text", "where", "value"), NOT_METRICS)
def test_a_file_that_is_not_a_metrics_file_is_refused(text: str | bytes, where: str, value: str) -> None:
    assert has_problem(problems(text), where, value)


def test_a_huge_file_is_refused() -> None:
    assert has_problem(problems(b" " * (MAX_BYTES + 1)), "", "5,000,001", "5,000,000")


WRONG_ATTEMPTS: list[tuple[dict[str, Any], str, str]] = [
    ({"timestamp": "yesterday"}, "timestamp", "'yesterday'"),
    ({"timestamp": "2025-02-30T00:00:00Z"}, "timestamp", "2025-02-30"),
    ({"timestamp": "0001-01-01T00:00:00+14:00"}, "timestamp", "0001-01-01"),
    ({"timestamp": "1999-12-31T23:59:59Z"}, "timestamp", "2000"),
    ({"timestamp": 1760519700000}, "timestamp", "1970"),
    ({"timestamp": True}, "timestamp", "true"),
    ({"timestamp": []}, "timestamp", "list"),
    ({"total_tokens_in": 2**54}, "total_tokens_in", "9,007,199,254,740,992"),
    ({"error": "ratelimited"}, "error", "'rate_limited'"),
    ({"error": {}}, "error", "mapping"),
    ({"steps": [{"tokens_in": 1, "tokens_out": 1}]}, "steps[0]", "'step'"),
    ({"steps": [{"step": 1, "tokens_in": 1}]}, "steps[0]", "'tokens_out'"),
    ({"steps": [{"step": 1, "tokens_in": 1, "tokens_out": 1}] * 2}, "steps[1]", "'1'"),
    ({"steps": [{"step": 1, "tokens_in": 99_999, "tokens_out": 1}]}, "steps", "99,999"),
    ({"steps": [{"step": 1, "tokens_in": 1, "tokens_out": 99_999}]}, "steps", "total_tokens_out"),
    ({"meruit": {"assurance": "Z"}}, "meruit.assurance", "'Z'"),
    ({"meruit": {"asurance": "A"}}, "meruit", "`asurance`"),
]


@pytest.mark.parametrize(("change", "where", "value"), WRONG_ATTEMPTS)
def test_a_problem_in_an_attempt_is_listed(change: dict[str, Any], where: str, value: str) -> None:
    path = f"usage_api_reconciliation.attempts[0].{where}"
    assert has_problem(problems(metrics(look(FIRST, **change))), path, value)


WRONG_RUNS: list[tuple[dict[str, Any], str, str]] = [
    ({"end_time": FIRST, "ended_at": SECOND}, "end_time", "'ended_at'"),
    ({"end_time": "2025-10-15T09:15:00"}, "end_time", "2025-10-15T09:15:00"),
    ({"steps": 6}, "steps", "6"),
    ({"steps": [{"step": 1, "expects_usage": "no"}]}, "expects_usage", "'no'"),
    ({"steps": [{"step": 1}, {"step": "1"}]}, "steps[1]", "'1'"),
    ({"steps": [{}] * 10_001}, "steps", "10,001"),
    ({"declares_no_usage": 1}, "declares_no_usage", "1"),
    ({"metered": {"id": "r-1"}}, "metered", "`framework`"),
    ({"metered": {"id": "other", "framework": "f"}}, "run_id", "'other'"),
]


@pytest.mark.parametrize(("fields", "where", "value"), WRONG_RUNS)
def test_a_problem_of_the_run_is_listed(fields: dict[str, Any], where: str, value: str) -> None:
    assert has_problem(problems(metrics(look(FIRST), **fields)), where, value)


@pytest.mark.golden
def test_the_words_of_every_problem() -> None:
    files: list[Any] = [WRONG_EVERYWHERE, *(text for text, _, _ in NOT_METRICS), b" " * (MAX_BYTES + 1)]
    files += [metrics(look(FIRST, **change)) for change, _, _ in WRONG_ATTEMPTS]
    files += [metrics(look(FIRST), **fields) for fields, _, _ in WRONG_RUNS]
    check_golden("usage/file_problems", "\n".join(str(one) for text in files for one in problems(text)))


# Manifests.

VERDICT = verdict_on(metrics(look(FIRST, PARTIAL), look(SECOND, PARTIAL)))


def test_a_manifest_repeats_what_may_be_claimed_and_keeps_all_else() -> None:
    runs = [{"run_id": "r-1", "note": [1]}, {"run_id": "r-2", "verification_status": "pending"}]
    file = read_manifest(json.dumps({"runs": runs, "made_by": "me"}))
    assert [(one.run_id, one.framework) for one in file.runs] == [("r-1", None), ("r-2", None)]
    written = json.loads(manifest_with(file, {"r-1": VERDICT}))
    claimed = {"verification_status": "warning", "imported": True}
    counts = {**claimed, "total_tokens_in": 21919, "total_tokens_out": 6459}
    assert written == {"runs": [{"run_id": "r-1", "note": [1], **counts}, runs[1]], "made_by": "me"}


def test_a_count_that_is_not_known_overwrites_none() -> None:
    text = json.dumps({"runs": [{"run_id": "r", "total_tokens_in": 5, "total_tokens_out": 1}]})
    (entry,) = json.loads(manifest_with(read_manifest(text), {"r": verdict_on(metrics())}))["runs"]
    assert entry == {
        "run_id": "r",
        "total_tokens_in": 5,
        "total_tokens_out": 1,
        "verification_status": "pending",
        "imported": False,
    }


def test_every_run_that_a_manifest_does_not_list_is_named() -> None:
    file = read_manifest('{"runs": [{"run_id": "r"}]}', "all.json")
    with pytest.raises(DocumentError) as refused:
        manifest_with(file, {"r": VERDICT, "y": VERDICT, "x": VERDICT})
    assert [one.where for one in refused.value.problems] == ["runs", "runs"]
    assert ["'x'" in one.message for one in refused.value.problems] == [True, False]


def test_every_problem_in_a_manifest_is_listed() -> None:
    text = """{"runs": [
      {"run_id": "r"},
      {"framework": "f"},
      {"run_id": "r", "total_tokens_in": -1, "framework": []}
    ]}"""
    found = problems(text, read_manifest)
    assert [(one.line, one.where) for one in found] == [
        (3, "runs[1]"),
        (4, "runs[2].framework"),
        (4, "runs[2].total_tokens_in"),
        (4, "runs[2].run_id"),
    ]
    assert "line 2" in found[3].message
    assert [(one.line, one.where) for one in problems("{}", read_manifest)] == [(1, "")]
    assert [(one.line, one.where) for one in problems("[]", read_manifest)] == [(1, "")]


def test_recorded_runs_become_a_manifest() -> None:
    records = [UsageRecord(MeteredRun(name, "planner"), 1, 2, VERDICT) for name in ("a", "b")]
    written = write_manifest(records)
    assert [one.run_id for one in read_manifest(written).runs] == ["a", "b"]
    assert json.loads(written)["runs"][0] == {
        "run_id": "a",
        "framework": "planner",
        "verification_status": "warning",
        "imported": True,
        "total_tokens_in": 21919,
        "total_tokens_out": 6459,
        "verification_message": VERDICT.message,
    }


def test_a_manifest_is_distinguished_from_a_metrics_file() -> None:
    assert is_manifest(parse_json('{"runs": []}', "x"))
    assert not is_manifest(parse_json('{"runs": 3, "run_id": "r"}', "x"))
    assert not is_manifest(parse_json("[]", "x"))


# An attempt with steps.


def stepwise(at: str, *each: tuple[int, int], **more: Any) -> dict[str, Any]:
    """An attempt that has steps, and no totals."""
    steps = [{"step": n, "tokens_in": put, "tokens_out": out} for n, (put, out) in enumerate(each, start=1)]
    return {"timestamp": at, "steps": steps, **more}


@pytest.mark.parametrize("more", [{}, {"total_steps": 6, "steps_with_tokens": 3}, {"total_steps": 6}])
def test_an_attempt_without_totals_is_the_sum_of_its_steps(more: dict[str, int]) -> None:
    (read,) = read_metrics(json.dumps(metrics(stepwise(FIRST, *PARTIAL, **more)))).observations
    assert read.total is not None
    assert (read.total.input, read.total.output, read.unattributed) == (21919, 6459, 0)
    verdict = verdict_on(metrics(stepwise(FIRST, *PARTIAL, **more), stepwise(SECOND, *PARTIAL, **more)))
    assert (verdict.code, verdict.steps_with_tokens, verdict.total_steps) == (UsageCode.INCOMPLETE, 3, 6)
    complete = verdict_on(metrics(stepwise(FIRST, *COMPLETE), stepwise(SECOND, *COMPLETE)))
    assert (complete.status, complete.steps_with_tokens) == (UsageStatus.VERIFIED, 6)


def test_listed_steps_are_counted_steps() -> None:
    """Recorded, where the run declares no steps, and beside an attempt that has the counts."""
    first, second = stepwise(FIRST, *COMPLETE), stepwise(SECOND, *COMPLETE, total_steps=6, steps_with_tokens=6)
    assert verdict_on(metrics(first, second)).code is UsageCode.STABLE
    observations = read_metrics(json.dumps(metrics(first, stepwise(SECOND, *COMPLETE)))).observations
    ended = MeteredRun("r-1", "planner", ended_at=observations[0].at)
    recorded = decide(ended.for_judging, observations)
    assert (recorded.code, recorded.steps_with_tokens, recorded.total_steps) == (UsageCode.STABLE, 6, 6)


def test_an_attempt_with_half_of_its_totals_is_refused() -> None:
    with pytest.raises(DocumentError) as refused:
        read_metrics(json.dumps(metrics(stepwise(FIRST, *COMPLETE, total_tokens_in=39114))))
    assert ["total_tokens_out" in one.message for one in refused.value.problems] == [True]


def test_an_attempt_with_neither_totals_nor_steps_is_refused() -> None:
    with pytest.raises(DocumentError) as refused:
        read_metrics(json.dumps(metrics({"timestamp": FIRST})))
    said = " ".join(one.message for one in refused.value.problems)
    missing = ("total_tokens_in", "total_tokens_out", "steps_with_tokens", "total_steps")
    assert (len(refused.value.problems), all(name in said for name in missing)) == (4, True)


def test_an_empty_list_of_steps_counts_nothing() -> None:
    assert verdict_on(metrics(stepwise(FIRST))).code is UsageCode.ZERO_TOKENS


def test_an_exported_observation_keeps_its_marks() -> None:
    run = MeteredRun("r-1", "planner", ended_at=datetime(2025, 10, 15, 9, tzinfo=UTC))
    at = datetime(2025, 10, 15, 9, 15, tzinfo=UTC)
    early = Observation("y", at + timedelta(minutes=30), Tokens(10, 5, 2), early=True)
    attempts = [Observation("x", at, Tokens(10, 5, 2), reported_by="file"), early]
    written = write_metrics(UsageRecord(run, 1, 2, decide(run.for_judging, attempts)), attempts)
    marks = [one["meruit"] for one in json.loads(written)["usage_api_reconciliation"]["attempts"]]
    assert [(one.get("reported_by", ""), one.get("early", False)) for one in marks] == [("file", False), ("", True)]
    assert [one.early for one in read_metrics(written).observations] == [False, True]


# The shapes, as they are specified.


def test_a_recorded_run_is_written_in_the_specified_shape() -> None:
    run = MeteredRun(
        "r-1",
        "planner",
        ended_at=datetime(2025, 10, 15, 9, tzinfo=UTC),
        steps=(MeteredStep("1", succeeded=True, tokens=Tokens(10, 5, 2)), MeteredStep("2")),
    )
    at = datetime(2025, 10, 15, 9, 15, tzinfo=UTC)
    attempts = [
        Observation("x", at, Tokens(10, 5, 2)),
        Observation("y", at + timedelta(minutes=1), error=FetchError.AUTH, detail="401"),
    ]
    verdict = decide(run.for_judging, attempts)
    written = json.loads(write_metrics(UsageRecord(run, 1, 2, verdict), attempts))
    part = written["usage_api_reconciliation"]
    assert [*part] == ["verification_status", "verification_message", "imported", "attempts"]
    assert part["imported"] is False
    assert part["attempts"][0] == {
        "id": "x",
        "timestamp": "2025-10-15T09:15:00Z",
        "total_tokens_in": 10,
        "total_tokens_out": 5,
        "total_api_calls": 2,
        "steps_with_tokens": 1,
        "total_steps": 2,
        "meruit": {"counted": False},
    }
    assert part["attempts"][1]["error"] == "auth"
    assert (part["attempts"][1]["total_tokens_in"], "total_steps" in part["attempts"][1]) == (None, False)
    assert (written["run_id"], written["framework"], written["total_steps"]) == ("r-1", "planner", 2)
    assert written["steps"] == [
        {"step": "1", "tokens_in": 10, "tokens_out": 5, "api_calls": 2, "success": True},
        {"step": "2", "tokens_in": None, "tokens_out": None},
    ]


def test_the_examples_files_are_read() -> None:
    manifest = read_manifest((EXAMPLES / "runs_manifest.json").read_bytes())
    for entry in manifest.runs:
        file = read_metrics((EXAMPLES / str(entry.framework) / entry.run_id / "metrics.json").read_bytes())
        assert to_metered_run(file).id == entry.run_id
