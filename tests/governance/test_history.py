"""What is remembered of an agent equals what a search of its whole past would find, and stays small."""

import math
import statistics
from hashlib import blake2b
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.governance.history import (
    BLOCK_WORDS,
    BLOCKS,
    LARGEST,
    MAX_DAYS,
    MAX_METRICS,
    MAX_WORD_MARKS,
    NEAR_WORDS,
    WINDOW,
    AgentHistory,
    NearTries,
    TryMark,
    add_try,
    baselines,
    find_near_tries,
    is_first_output,
    is_near,
    normalise_text,
    recent,
    share_words,
    sketch,
    update_history,
    word_marks,
)
from meruit.model.governance import Action, Disposition, Flag, GovernanceResult, MetricFact
from meruit.model.kinds import MetricType


class Outcome(NamedTuple):
    day: int
    facts: list[MetricFact]
    mismatch: bool


VALUES = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
FACTS = st.builds(
    MetricFact,
    metric=st.sampled_from(["accuracy", "latency_ms", "exactness"]),
    criterion_id=st.just("c"),
    value=VALUES,
    kind=st.sampled_from([None, MetricType.LATENCY, MetricType.ACCURACY]),
    margin=st.none() | st.floats(-1, 1) | st.just(math.nan),
)
OUTCOMES = st.lists(st.builds(Outcome, st.integers(100, 170), st.lists(FACTS, max_size=4), st.booleans()), max_size=80)


def all_of(outcomes: list[Outcome]) -> AgentHistory:
    memory = AgentHistory()
    for outcome in outcomes:
        memory = update_history(memory, outcome.facts, outcome.day, mismatch=outcome.mismatch)
    return memory


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@given(OUTCOMES)
def test_it_equals_a_plain_recomputation(outcomes: list[Outcome]) -> None:
    # A store hands outcomes over in order; what comes late is covered below.
    outcomes = sorted(outcomes, key=lambda outcome: outcome.day)
    memory = all_of(outcomes)
    facts = [fact for outcome in outcomes for fact in outcome.facts]
    named = [fact for fact in facts if fact.kind is MetricType.ACCURACY or fact.metric == "accuracy"]
    assert memory.margins == [fact.margin for fact in facts if finite(fact.margin)][-WINDOW:]
    assert memory.accuracies == [fact.value for fact in named if finite(fact.value)][-WINDOW:]
    assert memory.mismatches == sum(outcome.mismatch for outcome in outcomes)
    today = outcomes[-1].day if outcomes else 0
    found = baselines(memory, ["accuracy", "latency_ms", "exactness", "unheard of"], today)
    for metric in ("accuracy", "latency_ms", "exactness"):
        values = [
            fact.value
            for outcome in outcomes
            for fact in outcome.facts
            if outcome.day > today - MAX_DAYS
            and fact.metric == metric
            and fact.value is not None
            and finite(fact.value)
        ]
        if not values:
            assert metric not in found
            continue
        assert found[metric].n == len(values)
        assert found[metric].mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
        expected = statistics.stdev(values) if len(values) > 1 else 0.0
        assert found[metric].deviation == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert "unheard of" not in found


@given(OUTCOMES)
def test_it_survives_json_and_stays_small(outcomes: list[Outcome]) -> None:
    memory = all_of(outcomes)
    assert AgentHistory.from_json(memory.to_json()) == memory
    assert len(memory.margins) <= WINDOW
    assert len(memory.accuracies) <= WINDOW
    assert all(0 < len(days) <= MAX_DAYS for days in memory.days.values())


@given(OUTCOMES, st.lists(FACTS, max_size=4))
def test_what_is_recent_is_what_will_be_remembered(outcomes: list[Outcome], facts: list[MetricFact]) -> None:
    before = all_of(outcomes)
    kept = before.to_json()
    after = update_history(before, facts, 170, mismatch=False)
    assert recent(before, facts) == (after.margins, after.accuracies)
    assert before.to_json() == kept


def of(metric: str, value: float) -> list[MetricFact]:
    return [MetricFact(metric, "c", value)]


def test_a_small_spread_on_a_large_mean_is_not_lost() -> None:
    memory = AgentHistory()
    for number in range(300):
        memory = update_history(memory, of("m", 1e9 + number % 3), 100 + number // 20, mismatch=False)
    found = baselines(memory, ["m"], 120)["m"]
    assert found.deviation == pytest.approx(statistics.stdev([number % 3 for number in range(300)]), rel=1e-6)


def test_values_that_would_square_to_infinity_are_not_remembered() -> None:
    memory = update_history(AgentHistory(), [*of("m", LARGEST), *of("m", -LARGEST), *of("m", 1e308)], 1, mismatch=False)
    assert baselines(memory, ["m"], 1)["m"].n == 2
    assert AgentHistory.from_json(memory.to_json()) == memory


def test_days_go_after_thirty_and_later_days_do_not_count_yet() -> None:
    memory = AgentHistory()
    for day in range(100, 140):
        memory = update_history(memory, of("m", float(day)), day, mismatch=False)
    assert [one.day for one in memory.days["m"]] == [*range(110, 140)]
    assert baselines(memory, ["m"], 139)["m"].n == MAX_DAYS
    assert baselines(memory, ["m"], 119)["m"].n == 10
    assert baselines(memory, ["m"], 140)["m"].n == MAX_DAYS - 1
    assert not baselines(memory, ["m"], 169)
    late = update_history(memory, of("m", 7.0), 105, mismatch=False)
    assert late.days == memory.days
    assert not update_history(memory, of("n", 7.0), 400, mismatch=False).days.get("m")


def test_of_many_metrics_those_in_use_and_well_known_stay() -> None:
    memory = update_history(AgentHistory(), of("zzz old", 1.0), 90, mismatch=False)
    for number in range(MAX_METRICS):
        memory = update_history(memory, of(f"m{number:03}", 1.0) * 2, 100, mismatch=False)
    assert len(memory.days) == MAX_METRICS
    assert "zzz old" not in memory.days
    crowded = update_history(
        memory, [fact for number in range(500) for fact in of(f"z{number}", 1.0)], 100, mismatch=False
    )
    assert crowded.days == memory.days
    assert "new" in update_history(memory, of("new", 1.0), 101, mismatch=False).days


# Sketches.


def naive_sketch(text: str) -> str:
    """A simhash as it is usually described: every shingle votes on every bit."""
    words = text.casefold().split()
    shingles = [" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))]
    hashes = [int.from_bytes(blake2b(shingle.encode(), digest_size=8).digest(), "big") for shingle in shingles]
    votes = [sum(1 if number >> bit & 1 else -1 for number in hashes) for bit in range(64)]
    return f"{sum(1 << bit for bit in range(64) if votes[bit] > 0):016x}"


@given(st.lists(st.sampled_from(["one", "Two", "three", "4", "fünf"]), max_size=30))
def test_a_sketch_is_a_simhash_of_three_words_at_a_time(words: list[str]) -> None:
    assert sketch("  ".join(words)) == naive_sketch(" ".join(words))


@given(st.text(st.characters()))
def test_any_text_has_a_sketch_near_itself(text: str) -> None:
    assert len(sketch(text)) == 16
    assert is_near(sketch(text), sketch(text))


def test_nearly_equal_texts_are_near_and_others_are_not() -> None:
    words = [f"word{number * 7919 % 1009}" for number in range(600)]
    one = sketch(" ".join(words))
    assert is_near(one, sketch(" ".join([*words[:300], "another", *words[301:]])))
    assert not is_near(one, sketch(" ".join(reversed(words))))
    assert not is_near(sketch("yes"), sketch("no"))


def test_three_bits_are_near_and_four_are_not() -> None:
    assert is_near("0000000000000000", "0000000000000007")
    assert not is_near("0000000000000000", "800000000000000e")


def test_a_very_long_text_is_sampled_from_first_to_last_word() -> None:
    words = [f"w{number}" for number in range(4 * BLOCKS * BLOCK_WORDS)]
    whole = sketch(" ".join(words))
    assert is_near(whole, sketch(" ".join(["first", *words])))
    assert is_near(whole, sketch(" ".join([*words[:200], "changed", *words[201:]])))
    assert not is_near(whole, sketch(" ".join(words[: len(words) // 2])))


# Texts as their readers see them.


@given(st.text(st.characters()))
def test_a_normalised_text_stays_as_it_is(text: str) -> None:
    once = normalise_text(text)
    assert normalise_text(once) == once
    assert once == once.strip()


@given(
    st.text("abc XYZ-09ß\u00e9", min_size=1),
    st.sampled_from(["\u200b", "\u00ad", "\ufeff", "\u2060", "\u202e", "\ufe0f", "\x00", "\x7f", "\u034f", "\u3164"]),
)
def test_hidden_characters_change_nothing(text: str, hidden: str) -> None:
    # Behind each character, as far as none takes part in composing one.
    assert normalise_text(hidden.join(["", *text, ""])) == normalise_text(text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Canary-7F", "canary-7f"),
        ("  a \t b\n\u00a0\u3000c ", "a b c"),
        ("a\u2010b\u2011c\u2012d\u2013e\u2014f\u2015g\u2212h\uff0di", "a-b-c-d-e-f-g-h-i"),
        ("ＦＵＬＬ ①", "full 1"),
        ("Stra\u00dfe", "strasse"),
        ("e\u0301", "\u00e9"),
        ("e\u200b\u0301", "\u00e9"),
        ("\u200b\ufeff", ""),
        ("a\x00b\x1b", "ab"),
        ("a\x85b\x1cc", "a b c"),
        ("\ud800x", "\ud800x"),
    ],
)
def test_a_text_is_compared_as_it_is_seen(text: str, seen: str) -> None:
    assert normalise_text(text) == seen


@pytest.mark.parametrize("accents", ["\u0315\u0316", "\u0344\u0316", "\uff9e\u0316", "\u0f73\u0316"])
def test_accents_upon_accents_take_no_longer(accents: str) -> None:
    assert len(normalise_text("a" + accents * 200_000)) < 200


def test_a_sketch_is_that_of_what_is_seen() -> None:
    words = " ".join(f"word{number}" for number in range(50))
    assert sketch("\u200b".join(words.upper())) == sketch(words)


# Sightings.


@pytest.mark.parametrize(
    ("said", "sighted"),
    [
        (None, True),
        (GovernanceResult(valid=True), True),
        (GovernanceResult(valid=True, flags=["reference_copy"], disposition=Disposition.HOLD), True),
        (GovernanceResult(valid=False), False),
        (GovernanceResult(valid=True, flags=[Flag("canary_leak", "1", Action.INVALIDATE)]), False),
        (GovernanceResult(valid=True, flags=[Flag("sybil_output", "1", Action.HOLD)]), False),
        (GovernanceResult(valid=True, flags=["replayed_output"]), False),
    ],
)
def test_invalid_or_copied_outputs_are_not_first_outputs(said: GovernanceResult | None, sighted: bool) -> None:
    assert is_first_output(said) is sighted


def marks(*texts: str, passed: bool = False) -> list[TryMark]:
    tries: list[TryMark] = []
    for text in texts:
        tries = add_try(tries, word_marks(text), passed=passed)
    return tries


@given(st.lists(st.sampled_from(["a b c d", "a b c d e", "f g h i", "a", "1 2 3 4", ""]), max_size=12))
def test_stored_tries_are_read_back(texts: list[str]) -> None:
    tries = marks(*texts)
    assert [TryMark.parse(str(one)) for one in tries] == tries


def test_tries_are_near_through_the_words_that_they_share() -> None:
    assert find_near_tries(marks("a b c d e f"), word_marks("a b c d")) == NearTries(1, 1)
    assert find_near_tries(marks("a b c d"), word_marks("a b c d e f 17")) == NearTries(1, 1)
    assert find_near_tries(marks("the sum is 17 or so"), word_marks("the sum is 4.5 or so")) == NearTries(1, 1)
    assert find_near_tries(marks("a b c d"), word_marks("e f g h")) == NearTries()
    assert find_near_tries(marks("yes"), word_marks("yes it is a long story")) == NearTries()
    assert find_near_tries(marks("yes", passed=True), word_marks("Yes")) == NearTries(1, 0)
    # The halves of a text are near each other through the whole.
    assert find_near_tries(marks("a b c d e f g h", "a b c d"), word_marks("e f g h")) == NearTries(2, 2)


def cut_in_halves(*sizes: int) -> list[str]:
    """Texts of so many words, none of which is in two of them."""
    words = iter([f"w{chr(97 + one // 26)}{chr(97 + one % 26)}" for one in range(600)])
    return [" ".join(next(words) for _ in range(size)) for size in sizes]


def test_tries_that_halve_again_and_again_are_one_search() -> None:
    *before, last = cut_in_halves(128, 64, 33, 16, 8)
    assert find_near_tries(marks(*before), word_marks(last)) == NearTries(4, 4)
    # Halves inside an earlier half count as well as those beside it, in any order.
    inside = " ".join(before[1].split()[:31])
    assert find_near_tries(marks(*before[:3], inside), word_marks(before[3])) == NearTries(4, 4)
    assert find_near_tries(marks(*before, passed=True), word_marks(last)) == NearTries(4, 0)


@pytest.mark.parametrize(
    "sizes",
    [
        # Two halvings, sizes that do not fall, and halves of a few words.
        *((40, 20, 10), (64, 64, 64, 64, 64), (8, 16, 32, 64, 128), (56, 28, 14, 7), (128, 110, 90, 75)),
    ],
)
def test_texts_without_common_words_are_not_a_search_by_themselves(sizes: tuple[int, ...]) -> None:
    *before, last = cut_in_halves(*sizes)
    assert find_near_tries(marks(*before), word_marks(last)) == NearTries()


def test_texts_that_share_some_words_are_not_halves_of_a_list() -> None:
    common = "the sum of what was paid"
    *before, last = (f"{common} {text}" for text in cut_in_halves(122, 58, 26, 10))
    assert find_near_tries(marks(*before), word_marks(last)).near < 3


def test_long_texts_are_compared_by_a_sample_of_their_words() -> None:
    words = [f"w{chr(97 + one // 26)}{chr(97 + one % 26)}" for one in range(600)]
    whole, half = word_marks(" ".join(words)), word_marks(" ".join(words[:300]))
    other = word_marks(" ".join(f"x{word}" for word in words))
    assert len(whole.split(":")) <= MAX_WORD_MARKS + 1
    assert share_words(whole, half) > NEAR_WORDS
    assert share_words(whole, other) == 0
