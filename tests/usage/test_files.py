"""`metrics.json` and `runs_manifest.json`: nothing is lost on the way in and out, and every mistake is told."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.documents.document import MAX_BYTES
from meruit.errors import DocumentError, FetchError
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


def told(text: Any, read: Any = read_metrics) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        read(text if isinstance(text, str | bytes) else json.dumps(text), "m.json")
    assert refused.value.name == "m.json"
    return [str(problem) for problem in refused.value.problems]


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


@settings(max_examples=30)
@given(
    _runs, st.lists(_looks(), max_size=4), st.lists(st.builds(Acknowledgement, _moments, _texts, _texts), max_size=2)
)
def test_a_recorded_run_is_written_and_read_back_as_hearsay_and_nothing_else_is_lost(
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


@settings(max_examples=30)
@given(st.dictionaries(st.text(min_size=1, max_size=6), _json, max_size=4), _json)
def test_a_verdict_changes_two_fields_of_a_file_and_no_other(fields: dict[str, Any], unknown: Any) -> None:
    whole = fields | metrics(look(FIRST, unknown=unknown), look(SECOND))
    whole["usage_api_reconciliation"] |= {"verification_status": "nonsense", "unknown": unknown}
    file = read_metrics(json.dumps(whole))
    written = json.loads(with_verdict(file, decide(file.run, file.observations)))
    part = written["usage_api_reconciliation"]
    assert (part.pop("verification_status"), part.pop("verification_message")) == (
        "verified",
        "✅ Data stable across 61 minute interval",
    )
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


@settings(max_examples=60)
@given(st.data())
def test_whatever_stands_anywhere_is_read_or_refused_in_words(data: st.DataObject) -> None:
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
def test_a_file_vouches_for_no_more_than_a_shared_lane_and_owns_every_token_that_no_step_has(
    said: Assurance, unattributed: int
) -> None:
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


def test_a_word_that_accepts_a_count_that_fell_is_read() -> None:
    assert verdict_on(FELL).code is UsageCode.DECREASED
    assert verdict_on(accepted()).code is UsageCode.INCOMPLETE


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"by": ""}, "acknowledged[0].by: a count is accepted by somebody"),
        ({"by": None}, "acknowledged[0].by: expected `str`, got `null`"),
        ({"reason": " "}, "acknowledged[0].reason: a count is accepted for a reason"),
        ({"at": "2025-10-15T12:00:01Z"}, "acknowledged[0].at: it is later than the latest attempt"),
        ({"at": "2199-01-01T00:00:00Z"}, "acknowledged[0].at: it is later than the latest attempt"),
        ({"at": "2025-10-15T12:00:00"}, "acknowledged[0].at: expected"),
    ],
)
def test_a_word_without_a_name_a_reason_or_a_time_that_has_come_is_refused(
    change: dict[str, Any], complaint: str
) -> None:
    assert any(complaint in one for one in told(accepted(**change)))


def test_a_word_is_given_after_the_latest_attempt_and_never_after_now() -> None:
    now = datetime(2025, 10, 15, 13, tzinfo=UTC)
    text = json.dumps(accepted(at="2025-10-15T13:00:00Z"))
    assert read_metrics(text, now=now).acknowledged[0].by == "ada"
    with pytest.raises(DocumentError, match="it is later than now"):
        read_metrics(text, now=now - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2025-10-15T09:15:00.0000009Z", "2025-10-15T10:15:00.0000001Z"),
        (1760519700.0000007, 1760523300.0000002),
        ("2025-10-15T09:15:00Z", "2025-10-15T10:14:59.99999999Z"),
        ("2025-10-15T09:15:00Z", "2025-10-15T10:14:59,9999999Z"),
    ],
)
def test_a_time_that_is_finer_than_a_microsecond_is_refused_as_it_would_be_cut(first: Any, second: Any) -> None:
    assert "is finer than a microsecond; write at most 6 digits" in told(metrics(look(first), look(second)))[0]


def test_microseconds_are_read_to_the_last() -> None:
    exact = "2025-10-15T09:15:00.123456Z"
    (found,) = read_metrics(json.dumps(metrics(look(exact)))).observations
    (other,) = read_metrics(json.dumps(metrics(look(1760519700.123456)))).observations
    assert found.at == other.at == datetime(2025, 10, 15, 9, 15, 0, 123456, UTC)


# The specification's scenarios, and what a person would argue about.


def test_three_of_six_steps_with_tokens_are_incomplete() -> None:
    found = verdict_on(metrics(look(FIRST, PARTIAL), look(SECOND, PARTIAL)))
    assert found.status is UsageStatus.WARNING
    assert found.message == "⚠️ Data stable but incomplete: only 3/6 steps have tokens"
    assert found.tokens == Tokens(21919, 6459)
    assert found.empty_steps == ("3", "5", "6")


@pytest.mark.parametrize("steps", [..., None])
def test_six_of_six_steps_with_tokens_are_verified_whether_or_not_steps_are_listed(steps: Any) -> None:
    found = verdict_on(metrics(look(FIRST, steps=steps), look(SECOND, steps=steps)))
    assert (found.status, found.message) == (UsageStatus.VERIFIED, "✅ Data stable across 61 minute interval")
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


def test_a_file_without_the_runs_end_is_taken_as_looked_at_afterwards() -> None:
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


def test_calls_and_cached_tokens_count_where_they_are_told() -> None:
    steps = [{"step": "plan", "tokens_in": 10, "tokens_out": 5, "api_calls": 2, "cached_tokens": 4}]
    one = look(FIRST, ((10, 5),), total_api_calls=2, total_cached_tokens=4, steps=steps)
    (found,) = read_metrics(json.dumps(metrics(one))).observations
    assert found.total == Tokens(10, 5, 2, 4)
    assert found.steps == {"plan": Tokens(10, 5, 2, 4)}


def test_tokens_beyond_the_steps_belong_to_none_of_them() -> None:
    more = [look(at, total_tokens_in=39_114 + 7) for at in (FIRST, SECOND)]
    found = verdict_on(metrics(*more))
    assert (found.code, "7 tokens in no declared step" in found.message) == (UsageCode.UNATTRIBUTED, True)


def test_a_step_that_the_run_declares_is_expected_though_no_attempt_knows_it() -> None:
    steps = [{"step": number} for number in range(1, 8)]
    both = look(FIRST), look(SECOND)
    assert verdict_on(metrics(*both, steps=steps)).message.endswith("only 6/7 steps have tokens")
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
    run = to_metered_run(read_metrics(json.dumps(whole), looked=False))
    assert (run.id, run.framework, run.task, run.source, run.score) == ("7", "planner", "todo", "openai-main", 0.5)
    assert run.attribution_key == AttributionKey(AttributionKind.KEY, "key_1")
    assert [one.id for one in run.steps] == ["1", "look up", "3"]
    # Nothing at all is what stands there before anything is known.
    assert [one.local for one in run.steps] == [Tokens(10, 5), None, None]
    assert [one.succeeded for one in run.steps] == [True, None, None]
    assert run.steps[0].started_at == datetime(2025, 10, 15, 9, 16, tzinfo=UTC)


def test_what_steps_say_after_a_look_is_not_the_runs_own_account() -> None:
    whole = metrics(look(FIRST), steps=[{"step": 1, "tokens_in": 10, "tokens_out": 5}])
    assert [one.local for one in to_metered_run(read_metrics(json.dumps(whole))).steps] == [None]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"run_id": None}, "needs 'run_id'"),
        ({"framework": None}, "needs 'framework'"),
        ({"score": 2}, "line 1, score: expected `float` <= 1.0"),
        ({"attribution_key": {"kind": "kee"}}, "line 1, attribution_key.kind: invalid enum value 'kee'"),
        ({"task": ["a"]}, "line 1, task: expected `str`, got `array`"),
        ({"steps": [{"step": 1, "tokens_in": -1, "tokens_out": 0}]}, "steps[0].tokens_in: expected a number from 0"),
    ],
)
def test_what_cannot_be_recorded_is_told(fields: dict[str, Any], complaint: str) -> None:
    file = read_metrics(json.dumps({"run_id": "r", "framework": "f"} | fields), "m.json", looked=False)
    with pytest.raises(DocumentError) as refused:
        to_metered_run(file)
    assert complaint in str(refused.value)


# What is wrong is told, all of it.


def test_every_mistake_is_told_at_once_with_its_place_and_line() -> None:
    text = """{
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
    at, naive, zoned = "usage_api_reconciliation.attempts", "2025-10-15T09:15:00", "2025-10-15T09:15:00+02:00"
    assert told(text) == [
        "line 2, run_id: expected 1 to 200 printable characters, got text ''",
        f"line 5, {at}[0].timestamp: {naive} has no time zone; write {naive}Z if it is UTC, else its offset: {zoned}",
        f"line 5, {at}[0].total_tokens_in: expected a number from 0 to 9,007,199,254,740,992, got the number -1",
        f"line 5, {at}[0].total_tokens_out: expected a whole number, got the number 1.5",
        f"line 6, {at}[0].steps_with_tokens: expected a whole number, got true",
        f"line 6, {at}[0].total_steps: expected a whole number, got text '6'",
        f"line 7, {at}[1]: needs 'timestamp'",
        f"line 7, {at}[1]: needs 'total_tokens_out'",
        f"line 7, {at}[1]: needs 'steps_with_tokens'",
        f"line 7, {at}[1]: needs 'total_steps'",
        f"line 8, {at}[2]: expected a mapping, got the number 7",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty"),
        ("[]", "expected a mapping, got a list"),
        ("null", "expected a mapping"),
        ("{}", "needs 'usage_api_reconciliation'"),
        ('{"usage_api_reconciliation": {}}', "usage_api_reconciliation: needs 'attempts'"),
        ('{"usage_api_reconciliation": []}', "expected a mapping, got a list"),
        ('{"usage_api_reconciliation": {"attempts": {}}}', "expected a list, got a mapping"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "expected a finite number, not infinity or NaN"),
        ('{"a": 1} // a comment', "not valid JSON"),
        ("usage_api_reconciliation: {}", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
    ],
)
def test_what_is_no_metrics_file_is_refused(text: str | bytes, complaint: str) -> None:
    assert complaint in "\n".join(told(text))


def test_a_huge_file_is_refused() -> None:
    assert "at most 5,000,000 are read" in told(b" " * (MAX_BYTES + 1))[0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"timestamp": "yesterday"}, "expected a time such as 2025-10-15T09:15:00Z, got text 'yesterday'"),
        ({"timestamp": "2025-02-30T00:00:00Z"}, "there is no such time as 2025-02-30T00:00:00Z"),
        ({"timestamp": "0001-01-01T00:00:00+14:00"}, "there is no such time"),
        ({"timestamp": "1999-12-31T23:59:59Z"}, "between 2000 and 2200"),
        ({"timestamp": 1760519700000}, "expected seconds since 1970"),
        ({"timestamp": True}, "expected a time"),
        ({"timestamp": []}, "expected a time"),
        ({"total_tokens_in": 2**54}, "from 0 to 9,007,199,254,740,992"),
        ({"error": "ratelimited"}, "expected one of auth, rate_limited"),
        ({"error": "ratelimited"}, "did you mean 'rate_limited'?"),
        ({"error": {}}, "expected text, got a mapping"),
        ({"steps": [{"tokens_in": 1, "tokens_out": 1}]}, "steps[0]: needs 'step'"),
        ({"steps": [{"step": 1, "tokens_in": 1}]}, "steps[0]: needs 'tokens_out'"),
        ({"steps": [{"step": 1, "tokens_in": 1, "tokens_out": 1}] * 2}, "steps[1]: step '1' is listed twice"),
        ({"steps": [{"step": 1, "tokens_in": 99_999, "tokens_out": 1}]}, "add up to 99,999, total_tokens_in is only"),
        ({"steps": [{"step": 1, "tokens_in": 1, "tokens_out": 99_999}]}, "add up to 99,999, total_tokens_out is only"),
        ({"meruit": {"assurance": "Z"}}, "meruit.assurance: invalid enum value 'Z'"),
        ({"meruit": {"asurance": "A"}}, "meruit: object contains unknown field `asurance`"),
    ],
)
def test_a_mistake_in_an_attempt_is_told(change: dict[str, Any], complaint: str) -> None:
    assert any(complaint in one for one in told(metrics(look(FIRST, **change))))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"end_time": FIRST, "ended_at": SECOND}, "end_time: it is another time than 'ended_at'"),
        ({"end_time": "2025-10-15T09:15:00"}, "end_time: 2025-10-15T09:15:00 has no time zone"),
        ({"steps": 6}, "steps: expected a list, got the number 6"),
        ({"steps": [{"step": 1, "expects_usage": "no"}]}, "expects_usage: expected true or false, got text 'no'"),
        ({"steps": [{"step": 1}, {"step": "1"}]}, "step '1' is listed twice"),
        ({"steps": [{}] * 10_001}, "10,001 steps; at most 10,000 are taken"),
        ({"declares_no_usage": 1}, "declares_no_usage: expected true or false"),
        ({"metered": {"id": "r-1"}}, "metered: object missing required field `framework`"),
        ({"metered": {"id": "other", "framework": "f"}}, "run_id: it is 'other' in metered; write the same"),
    ],
)
def test_a_mistake_about_the_run_is_told(fields: dict[str, Any], complaint: str) -> None:
    assert any(complaint in one for one in told(metrics(look(FIRST), **fields)))


# Manifests.

VERDICT = verdict_on(metrics(look(FIRST, PARTIAL), look(SECOND, PARTIAL)))


def test_a_manifest_repeats_what_may_be_claimed_and_keeps_all_else() -> None:
    runs = [{"run_id": "r-1", "note": [1]}, {"run_id": "r-2", "verification_status": "pending"}]
    file = read_manifest(json.dumps({"runs": runs, "made_by": "me"}))
    assert [(one.run_id, one.framework) for one in file.runs] == [("r-1", None), ("r-2", None)]
    written = json.loads(manifest_with(file, {"r-1": VERDICT}))
    counts = {"verification_status": "warning", "total_tokens_in": 21919, "total_tokens_out": 6459}
    assert written == {"runs": [{"run_id": "r-1", "note": [1], **counts}, runs[1]], "made_by": "me"}


def test_a_count_that_is_not_known_overwrites_none() -> None:
    text = json.dumps({"runs": [{"run_id": "r", "total_tokens_in": 5, "total_tokens_out": 1}]})
    (entry,) = json.loads(manifest_with(read_manifest(text), {"r": verdict_on(metrics())}))["runs"]
    assert entry == {
        "run_id": "r",
        "total_tokens_in": 5,
        "total_tokens_out": 1,
        "verification_status": "pending",
    }


def test_every_run_that_a_manifest_does_not_name_is_told() -> None:
    file = read_manifest('{"runs": [{"run_id": "r"}]}', "all.json")
    with pytest.raises(DocumentError) as refused:
        manifest_with(file, {"r": VERDICT, "y": VERDICT, "x": VERDICT})
    assert [str(one) for one in refused.value.problems] == [
        "runs: does not name run 'x'; add it",
        "runs: does not name run 'y'; add it",
    ]


def test_every_mistake_in_a_manifest_is_told() -> None:
    text = """{"runs": [
      {"run_id": "r"},
      {"framework": "f"},
      {"run_id": "r", "total_tokens_in": -1, "framework": []}
    ]}"""
    assert told(text, read_manifest) == [
        "line 3, runs[1]: needs 'run_id'",
        "line 4, runs[2].framework: expected text, got a list",
        "line 4, runs[2].total_tokens_in: expected a number from 0 to 9,007,199,254,740,992, got the number -1",
        "line 4, runs[2].run_id: 'r' is listed twice, first on line 2",
    ]
    assert told("{}", read_manifest) == ["line 1: needs 'runs'"]
    assert told("[]", read_manifest) == ["line 1: expected a mapping, got a list"]


def test_recorded_runs_become_a_manifest() -> None:
    records = [UsageRecord(MeteredRun(name, "planner"), 1, 2, VERDICT) for name in ("a", "b")]
    written = write_manifest(records)
    assert [one.run_id for one in read_manifest(written).runs] == ["a", "b"]
    assert json.loads(written)["runs"][0] == {
        "run_id": "a",
        "framework": "planner",
        "verification_status": "warning",
        "total_tokens_in": 21919,
        "total_tokens_out": 6459,
        "verification_message": VERDICT.message,
    }


def test_a_manifest_is_told_from_a_runs_own_file() -> None:
    assert is_manifest(parse_json('{"runs": []}', "x"))
    assert not is_manifest(parse_json('{"runs": 3, "run_id": "r"}', "x"))
    assert not is_manifest(parse_json("[]", "x"))


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
    assert [*part] == ["verification_status", "verification_message", "attempts"]
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
