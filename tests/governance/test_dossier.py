"""Dossiers: observations come before claims, and nothing of the work itself is in them."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.app import build_engine
from meruit.config import Settings
from meruit.contracts.bill import bill, hold_for
from meruit.errors import BadRunId
from meruit.governance import dossier as dossiers
from meruit.governance.dossier import (
    LONG_CHARS,
    CheatTraps,
    HandedIn,
    OutcomeIdentity,
    check_run_id,
    dossier_of,
    find_leaked_canaries,
    fingerprints_of,
    metadata_to_judge,
    most_similar,
    reaches_similarity,
    similarity,
    text_of,
)
from meruit.governance.evaluate import govern
from meruit.governance.metadata import OF_AGENTS
from meruit.model.canonical import payload_bytes
from meruit.model.contract import Contract, ContractState, Escrow, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Provenance
from meruit.model.governance import Dossier
from meruit.model.kinds import MetricType
from meruit.model.verdict import Status, VerificationResult
from meruit.model.work import CLAIMED, Work

ENGINE = build_engine(Settings(), governed=False)
NOW = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
ABOUT = OutcomeIdentity("c1", "w1", "a1", "b1")
CONTRACT = Contract(
    "c1",
    1,
    "w1",
    "a1",
    "b1",
    None,
    ContractState.EXECUTING,
    Escrow.HELD,
    "USD",
    0,
    b"{}",
    awarded_at=NOW,
    expires_at=NOW,
    started_at=NOW - timedelta(seconds=5),
)
NOTHING_PLANTED = CheatTraps()
FAST = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 1000, "bonus": 5}
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


def judged(*criteria: Any, output: Any = None, metadata: Any = None, given: Any = None) -> VerificationResult:
    whole = SuccessCriteria.model_validate({"criteria": [*(criteria or [WORDS])]})
    return ENGINE.verify_sync(
        "c1", given or {}, {"text": "two words"} if output is None else output, whole, metadata or {}
    )


def by_agent(seen_ms: float | None = 5000.0, **metadata: Any) -> dict[str, Any]:
    """The metadata of an agent whose run was timed by the service from its start."""
    seen = {} if seen_ms is None else {"duration_ms": seen_ms, "observed_ms": seen_ms}
    return metadata_to_judge(HandedIn({}, metadata, by_agent=True), seen, NOW)


def drawn(
    metadata: Any = None,
    output: Any = None,
    *,
    given: Any = None,
    planted: CheatTraps = NOTHING_PLANTED,
    claimed: bool = False,
) -> Dossier:
    """The dossier of some work."""
    work = Work(output=output or {"text": "two words"}, input=given or {}, metadata=metadata or {})
    result = judged(output=work.output, metadata=work.metadata, given=work.input)
    return dossier_of(ABOUT, work, result, planted, claimed_may_earn=claimed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TOLD = st.dictionaries(
    st.sampled_from(
        [
            *OF_AGENTS,
            *("claimed", "observed_ms", "received_at", "claimed_metrics", "reported_by"),
            *("evaluator", "usage", "model"),
        ]
    ),
    JSON,
    max_size=8,
)


# Properties.


@given(TOLD, st.none() | st.floats(0, 1e9))
def test_agents_can_only_add_claims_to_the_metadata(given_metadata: dict[str, Any], seen: float | None) -> None:
    metadata = by_agent(seen, **given_metadata)
    assert metadata["received_at"] == "2026-03-01T12:00:05.000000+00:00"
    assert metadata["reported_by"] == "agent"
    assert metadata.get("observed_ms") == seen
    assert metadata.keys() <= {"received_at", "reported_by", "observed_ms", "duration_ms", CLAIMED}
    assert ("duration_ms" in metadata) == (seen is not None)
    assert metadata.get(CLAIMED, {}) == {name: value for name, value in given_metadata.items() if name in OF_AGENTS}


@given(JSON | st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_claimed_time_never_takes_the_place_of_the_clock(said: Any, seen: float) -> None:
    metadata = by_agent(seen, duration_ms=said)
    assert (metadata["duration_ms"], metadata["observed_ms"]) == (seen, seen)
    assert metadata[CLAIMED] == {"duration_ms": said}


@settings(max_examples=40)
@given(TOLD, st.booleans())
def test_every_submission_has_a_dossier(given_metadata: dict[str, Any], agent: bool) -> None:
    metadata = metadata_to_judge(HandedIn({}, given_metadata, by_agent=agent), {}, NOW)
    made = drawn(metadata)
    assert made.received_at == NOW.timestamp()
    assert govern(made).valid in (True, False)
    if agent:
        assert (made.evaluator_before, made.evaluator_after, made.canary_intact) == (None, None, None)
        assert (made.provider_tokens, made.usage_reconciled, made.claims) == (None, False, {})


@given(st.text(), st.text())
def test_similarity_lies_between_nothing_and_all(one: str, other: str) -> None:
    found = similarity(one, other)
    assert (found is None) == (not other)
    assert found is None or 0 <= found <= 1
    assert similarity(one, one) == (1.0 if one else None)


@settings(max_examples=300)
@given(
    st.data(),
    st.lists(
        st.sampled_from(["refund", "1.5", "the", "ab", "\u0441at", "-", "\u4e2d\u6587", "aGVsbG8gd29ybGQ="]),
        max_size=90,
    ),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5, 0.9, 0.98, 1.0]),
    st.booleans(),
)
def test_a_copy_is_found_as_its_similarity_says(
    data: st.DataObject, words: list[str], changes: int, least: float, backwards: bool
) -> None:
    reference, changed = " ".join(words), [*words]
    for _ in range(min(changes, len(words))):
        changed[data.draw(st.integers(0, len(words) - 1))] = data.draw(st.sampled_from(["not", "", "the refund"]))
    text = " ".join(changed)[:: -1 if backwards else 1]
    found = most_similar(dossiers.comparable_texts({"text": text}), reference)
    copied = reaches_similarity({"text": text}, reference, similarity_min=least, chars_min=0)
    assert copied == (found is not None and found >= least)


@settings(max_examples=40)
@given(JSON, st.text("abcdefghijklmnopqrstuvwxyzß-0123456789", min_size=8, max_size=20))
def test_a_planted_string_is_found_wherever_it_is_hidden(around: Any, canary: str) -> None:
    mark = [sha256(canary.encode()).hexdigest()]
    for output in ({"a": [around, {"b": f"x{canary}y"}]}, {"a": {canary: around}}, {"text": canary, "a": around}):
        assert find_leaked_canaries((canary,), output) == mark


# Times, and where they come from.


def test_an_operators_word_is_taken_as_it_is() -> None:
    given_metadata = {
        "duration_ms": 1,
        "evaluator": {"canary_intact": True},
        "usage": {"provider_tokens": 9},
        "model": "x",
    }
    metadata = metadata_to_judge(HandedIn({}, given_metadata), {"duration_ms": 5000.0}, NOW)
    assert metadata == {**given_metadata, "received_at": "2026-03-01T12:00:05.000000+00:00", "reported_by": "operator"}
    assert given_metadata.keys() == {"duration_ms", "evaluator", "usage", "model"}


@pytest.mark.parametrize("agent", [True, False])
def test_claims_of_metrics_are_kept_beside_the_rest(agent: bool) -> None:
    handed = HandedIn({}, {"claimed_metrics": {"accuracy": 0.1}}, {"accuracy": 0.9}, by_agent=agent)
    metadata = metadata_to_judge(handed, {}, NOW)
    assert metadata["claimed_metrics"] == {"accuracy": 0.9}
    assert drawn(metadata).claims == {"accuracy": 0.9}


def test_the_time_of_arrival_is_in_utc() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert metadata_to_judge(HandedIn({}, {}), {}, elsewhere)["received_at"] == "2026-03-01T12:00:05.000000+00:00"


def test_an_agent_without_a_claimed_time_is_judged_by_the_clock() -> None:
    metadata = by_agent()
    assert (metadata["duration_ms"], metadata["observed_ms"]) == (5000, 5000)
    assert by_agent(None).keys() == {"received_at", "reported_by"}


def test_an_agent_caught_is_shown_with_both_times() -> None:
    made = drawn(by_agent(duration_ms=100))
    assert (made.claimed_ms, made.observed_ms) == (100, 5000)
    assert govern(made).names == ["latency_mismatch"]


def test_a_time_that_was_not_observed_is_a_claim() -> None:
    criteria = SuccessCriteria.model_validate({"criteria": [FAST]})
    terms = Terms(cpc_rate=1)
    for metadata, provenance, bonus in (
        (by_agent(None, duration_ms=10), Provenance.CLAIMED, 0),
        (by_agent(20.0, duration_ms=10), Provenance.OBSERVED, 5_000_000),
        (metadata_to_judge(HandedIn({}, {"duration_ms": 10}), {}, NOW), Provenance.OBSERVED, 5_000_000),
    ):
        result = judged(FAST, metadata=metadata)
        (one,) = result.criterion_results
        assert (one.status, one.provenance) == (Status.MET, provenance)
        assert bill(result, terms, hold_for(criteria, terms)).bonus == bonus


@pytest.mark.parametrize("metric", ["time_to_first_byte", "processing_time"])
def test_times_within_an_observed_run_are_claims(metric: str) -> None:
    metadata = by_agent(20.0, duration_ms=20, ttfb_ms=1, processing_ms=1)
    assert metadata["duration_ms"] == 20
    (one,) = judged({**FAST, "metric": metric}, metadata=metadata).criterion_results
    assert one.provenance is Provenance.CLAIMED


def test_custom_code_reads_observed_times_only() -> None:
    quick = {"expr": "double(metadata.duration_ms)", "metric_type": "latency", "comparison": "lte", "threshold": 50}
    for seen, status in ((None, Status.INDETERMINATE), (20.0, Status.MET)):
        (one,) = judged(quick, metadata=by_agent(seen, duration_ms=10)).criterion_results
        assert one.status is status


# What a dossier says.


def test_a_dossier_holds_names_and_numbers() -> None:
    metadata = {
        "duration_ms": 12,
        "output_tokens": 3,
        "total_tokens": 7,
        "started_at": 1.5,
        "ended_at": "2026-03-01T12:00:00+00:00",
        "usage": {"provider_tokens": 9, "reconciled": True},
        "evaluator": {"before": {"tests": "aa"}, "after": {"tests": 5}, "canary_intact": False},
    }
    made = drawn(
        metadata, given={"reference": "two words"}, planted=CheatTraps(("not there",), impossible=True), claimed=True
    )
    assert OutcomeIdentity(made.contract_id, made.work_id, made.agent_id, made.consumer_id) == ABOUT
    assert (made.claimed_ms, made.output_tokens, made.claimed_tokens, made.started_at) == (12, 3, 7, 1.5)
    assert made.ended_at == NOW.timestamp() - 5
    assert (made.provider_tokens, made.usage_reconciled) == (9, True)
    assert (made.evaluator_before, made.evaluator_after, made.canary_intact) == ({"tests": "aa"}, {"tests": "5"}, False)
    assert (made.canaries, made.leaked, made.output_chars, made.reference_similarity) == (1, [], 9, 1.0)
    assert (made.impossible, made.claimed_may_earn, made.success) == (True, True, True)
    assert Dossier.from_json(made.to_json()) == made


@pytest.mark.parametrize("name", ["evaluator", "usage"])
@pytest.mark.parametrize("value", [None, 5, "x", [], {"before": 5, "canary_intact": "yes", "reconciled": "true"}])
def test_what_cannot_be_read_says_nothing(name: str, value: Any) -> None:
    made = drawn({name: value})
    assert (made.evaluator_before, made.canary_intact, made.usage_reconciled) == (None, None, False)


@pytest.mark.parametrize(
    ("claims", "read"),
    [({"a": 1, "b": "high", "c": 10**400, "d": True, "e": None}, {"a": 1.0}), ([1], {}), ("x", {}), (None, {})],
)
def test_claims_that_are_not_numbers_are_ignored(claims: Any, read: dict[str, float]) -> None:
    assert drawn({"claimed_metrics": claims}).claims == read


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2026-03-01T12:00:05Z", NOW.timestamp()),
        ("2026-03-01T17:30:05+05:30", NOW.timestamp()),
        ("2026-03-01T12:00:05", None),
        ("2026-03-01", None),
        ("yesterday", None),
        (1772366405, 1772366405.0),
        (0.5, 0.5),
        (10**400, None),
        (True, None),
        (None, None),
        ([], None),
    ],
)
def test_a_moment_has_a_zone_or_is_a_number(value: Any, moment: float | None) -> None:
    assert drawn({"started_at": value}).started_at == moment


def test_huge_integers_are_ignored() -> None:
    huge = drawn({"output_tokens": 10**400, "total_tokens": -(10**400), "duration_ms": 10**400})
    assert (huge.output_tokens, huge.claimed_tokens, huge.claimed_ms) == (None, None, None)


def test_a_claim_is_written_beside_what_it_earns() -> None:
    result = judged(FAST, WORDS, {**WORDS, "id": "many", "threshold": 50, "bonus": 1}, metadata={"duration_ms": 900})
    fast, words, many = dossier_of(ABOUT, Work(), result, CheatTraps(), claimed_may_earn=False).metrics
    assert (fast.metric, fast.kind, fast.value, fast.met) == ("latency_ms", None, 900, True)
    assert (fast.bonus_micros, fast.provenance) == (5_000_000, Provenance.OBSERVED)
    assert fast.margin == pytest.approx(0.1)
    assert (words.kind, words.margin, words.bonus_micros) == (MetricType.COUNT, 0, 0)
    assert (many.met, many.margin, many.bonus_micros) == (False, None, 0)


@pytest.mark.parametrize(
    ("criterion", "margin"),
    [
        ({"comparison": "gte", "threshold": 1}, 1.0),
        ({"comparison": "lt", "threshold": 4}, 0.5),
        ({"comparison": "gte", "threshold": 0}, None),
        ({"comparison": "eq", "threshold": 2}, None),
        ({"comparison": "in_range", "threshold": [1, 3]}, None),
        ({"comparison": "gt", "threshold": -4, "metric_type": "numeric"}, 1.5),
    ],
)
def test_a_margin_is_the_distance_past_a_one_sided_threshold(criterion: Any, margin: float | None) -> None:
    (fact,) = dossier_of(ABOUT, Work(), judged({**WORDS, **criterion}), CheatTraps(), claimed_may_earn=False).metrics
    assert fact.met
    assert fact.margin == margin


@pytest.mark.parametrize("threshold", [0.9, 90])
def test_a_margin_is_the_same_on_either_scale(threshold: float) -> None:
    criterion = {"metric": "rougeL", "metric_type": "percentage", "comparison": "gte", "threshold": threshold}
    result = judged(criterion, output={"text": "a b c"}, given={"reference": "a b c"})
    (fact,) = dossier_of(ABOUT, Work(), result, CheatTraps(), claimed_may_earn=False).metrics
    assert fact.value == 1
    assert fact.margin == pytest.approx(1 / 9)


# Texts and references.


def test_a_text_is_the_text_or_all_of_it() -> None:
    assert text_of({"text": "hello", "more": 1}) == "hello"
    assert text_of({"text": 5, "a": [1]}) == '{"a":[1],"text":5}'
    assert text_of({"a": object()}) == ""
    assert text_of({"text": ["one", {"b": "three", "a": "two"}], "more": 1}) == "one\ntwo\nthree"
    assert text_of({"z": "last", "answer": {"text": "first", "n": 5}, "m": ("x", None, True)}) == "first\nx\nlast"
    assert text_of({"text": " ", "body": "all of it"}) == "all of it\n "
    assert text_of({"text": ""}) == ""


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_a_text_is_the_same_however_its_output_is_recorded(output: dict[str, Any]) -> None:
    recorded = payload_bytes(output)
    assert recorded is None or text_of(json.loads(recorded)) == text_of(output)


def test_a_copy_in_parts_is_a_copy() -> None:
    words = [f"word{number}" for number in range(40)]
    parts = {"text": [" ".join(words[:20]), " ".join(words[20:])]}
    made = drawn(output=parts, given={"reference": " ".join(words)})
    assert (made.reference_similarity, made.output_chars) == (1.0, len(" ".join(words)))
    hidden = {"text": "\u200b".join(" ".join(words).upper())}
    assert drawn(output=hidden, given={"reference": " ".join(words)}).reference_similarity == 1.0


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("a b c", None, None),
        ("a b c", "", None),
        ("a b c", ["a"], None),
        ("", "a b", 0.0),
        ("!!!", "!!!", 1.0),
        ("!!!", "???", 0.0),
        ("c b a", "a b c", 1 / 3),
        ("A, B; C.", "a b c", 1.0),
        ("x y z", "a b c", 0.0),
    ],
)
def test_similarity_minds_words_and_their_order(text: str, reference: Any, expected: float | None) -> None:
    assert similarity(text, reference) == (None if expected is None else pytest.approx(expected))


def test_very_long_texts_are_compared_by_their_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dossiers, "MAX_COMPARED_WORDS", 2)
    assert similarity("c b a", "a b c") == 1.0


def test_without_planted_strings_nothing_leaks() -> None:
    assert drawn().leaked == find_leaked_canaries((), {"text": "anything"}) == []
    assert find_leaked_canaries(("canary-one", "canary-two"), {"text": "canary-two", "n": 5, "none": None}) == [
        sha256(b"canary-two").hexdigest()
    ]
    assert drawn(output={"text": "canary-one!"}, planted=CheatTraps(("canary-one",))).leaked != []


@pytest.mark.parametrize(
    "said",
    [
        *(
            "canary-7f3a",
            "CANARY-7F3A",
            "ca\u200bnary-7f3a",
            "canary\u20147f3a",
            "canary\u00ad-7f3a",
            "ｃａｎａｒｙ-7f3a",
        ),
        "see Canary\u20117F3A\u00a0",
    ],
)
def test_a_planted_string_is_found_however_it_is_dressed_up(said: str) -> None:
    for output in ({"text": said}, {"a": [{said: 1}]}):
        assert find_leaked_canaries(("canary-7f3a",), output) == [sha256(b"canary-7f3a").hexdigest()]
        assert find_leaked_canaries(("Canary\u20147F3A",), output) == [sha256("Canary\u20147F3A".encode()).hexdigest()]


@pytest.mark.parametrize("number", [1234567890, 1234567890.0, [{"n": 9912345678900}], -1234567890, 0.1234567890123])
def test_planted_digits_are_found_in_numbers(number: Any) -> None:
    assert find_leaked_canaries(("1234567890",), {"n": number}) == [sha256(b"1234567890").hexdigest()]


def test_canaries_are_sought_in_numbers_of_any_size() -> None:
    odd = {"a": 10**5000, "b": 1e308, "c": -1e308, "d": math.inf, "e": math.nan, "f": True, "g": 5e-324}
    assert find_leaked_canaries(("1234567890",), odd) == []


def test_a_phrase_of_words_is_not_found_by_chance() -> None:
    said = {"text": "It is internal. Note the rest.", "parts": ["internal", "note"]}
    assert find_leaked_canaries(("internal-note",), said) == []
    assert find_leaked_canaries(("internal note 42",), {"parts": ["inter", "nal note", " 4", "2"]}) != []


def test_the_text_of_any_field_is_compared_with_the_reference() -> None:
    words = " ".join(f"word{number}" for number in range(40))
    decoy = {"text": "something else, and quite long at that, so that it counts", "answer": words}
    made = drawn(output=decoy, given={"reference": words})
    assert made.reference_similarity == 1.0
    assert made.output_chars >= len(words)
    assert drawn(output={"text": f"short{chr(0x200B) * 100}"}).output_chars == 5


@pytest.mark.parametrize("run_id", [["r1"], 7, {"id": "r1"}, "", " r1", "r\u0435", "r" * 129, True, "r1\n"])
def test_a_run_id_is_text_of_a_fixed_form(run_id: Any) -> None:
    with pytest.raises(BadRunId) as refused:
        check_run_id({"run_id": run_id})
    assert refused.value.code == "bad_run_id"


@pytest.mark.parametrize("metadata", [{}, {"run_id": None}, {"run_id": "r1"}, {"run_id": "2026-05-04/a:7@x+y_z.1"}])
def test_other_run_ids_are_taken(metadata: dict[str, Any]) -> None:
    check_run_id(metadata)


def test_what_hardly_shows_is_not_found_everywhere() -> None:
    unseen = "\u200b" * 8
    assert find_leaked_canaries((unseen, "a" + unseen), {"text": "a b c"}) == []
    assert len(find_leaked_canaries((unseen,), {"text": f"x{unseen}"})) == 1


# Marks.


def marks(agent: str = "a1", text: str = "x" * LONG_CHARS, **metadata: Any) -> Any:
    contract = msgspec.structs.replace(CONTRACT, agent_id=agent)
    return fingerprints_of(contract, {"question": "why"}, HandedIn({"text": text}, metadata))


def test_a_run_is_named_by_its_agent() -> None:
    assert marks(run_id="7").evidence == marks(run_id="7", text="other").evidence is not None
    assert marks(run_id="7").evidence != marks(run_id="8").evidence
    assert marks(run_id="7").evidence != marks("a2", run_id="7").evidence
    assert marks(run_id="Run-A").evidence == marks(run_id="run-a").evidence
    unnamed: list[Any] = [None, True, [], {}, "", " \u200b", math.nan, 7, "r\u0435"]
    assert {marks(run_id=nothing).evidence for nothing in unnamed} == {None}


def test_a_run_without_a_name_is_known_by_its_times_and_output() -> None:
    timed = marks(started_at=1, ended_at=2)
    assert timed.evidence == marks(started_at=1, ended_at=2).evidence is not None
    others = [
        marks(started_at=1, ended_at=3),
        marks("a2", started_at=1, ended_at=2),
        marks(text="y" * LONG_CHARS, started_at=1, ended_at=2),
    ]
    assert timed.evidence not in [one.evidence for one in others]
    assert marks(started_at=1).evidence is None
    assert timed.evidence == marks(started_at=1.0, ended_at="1970-01-01T00:00:02Z").evidence
    assert marks(started_at="\ud800", ended_at=2).evidence is None
    assert marks(started_at="then", ended_at="now").evidence is not None


def test_a_task_is_its_input_and_what_is_asked_about_it() -> None:
    handed = HandedIn({"text": "x"}, {})
    one = fingerprints_of(CONTRACT, {"question": "why"}, handed, ("Title", None, "law"))
    assert one == fingerprints_of(CONTRACT, {"question": "why", "reference": "because"}, handed, ("Title", None, "law"))
    others = [
        fingerprints_of(CONTRACT, {"question": "why"}, handed, ("Title", "more", "law")),
        fingerprints_of(CONTRACT, {"question": "why"}, handed, ("Title", "law", None)),
        fingerprints_of(CONTRACT, {"question": "how"}, handed, ("Title", None, "law")),
    ]
    assert one.task not in [other.task for other in others]
    assert one.input == others[0].input == others[1].input != others[2].input
    plain = fingerprints_of(CONTRACT, {"question": "why"}, handed)
    assert plain.task == plain.input == one.input
    assert fingerprints_of(CONTRACT, {"question": "why"}, handed, ("\ud800",)).task == plain.input


@pytest.mark.parametrize(
    "dressed", [str.upper, "\u200b".join, lambda text: f" {text} ", lambda text: text.replace("-", "\u2014")]
)
def test_an_output_is_the_same_however_it_is_dressed_up(dressed: Callable[[str], str]) -> None:
    text = "an answer - of its own, long enough to be recognised among the others"
    assert marks(text=text).output == marks(text=dressed(text)).output is not None
    assert marks(text=text).sketch == marks(text=dressed(text)).sketch


def test_input_fingerprints_use_what_agents_see() -> None:
    handed = HandedIn({"text": "x"}, {})
    seen = fingerprints_of(CONTRACT, {"question": "why"}, handed).input
    assert seen == fingerprints_of(CONTRACT, {"question": "why", "reference": "because"}, handed).input
    assert seen != fingerprints_of(CONTRACT, {"question": "how"}, handed).input
    assert fingerprints_of(CONTRACT, {"question": object()}, handed).input == ""


def test_only_long_outputs_have_a_fingerprint() -> None:
    assert marks(text="x" * (LONG_CHARS - 1)).output is None
    assert marks(text="x" * LONG_CHARS).output == sha256(b"x" * LONG_CHARS).hexdigest()
    assert marks(text="short").sketch == marks(text="short").sketch != marks(text="other").sketch


def test_half_a_character_does_not_stop_a_mark() -> None:
    odd = {"text": "\ud800" * LONG_CHARS}
    assert fingerprints_of(CONTRACT, {}, HandedIn(odd, {})).output is not None
