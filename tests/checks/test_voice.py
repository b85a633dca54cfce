"""What was said: words are found as they are heard, numbers however they are read out, and silence earns nothing."""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meruit.checks.values.speech import (
    SpeechToken,
    digits_of,
    find_negator,
    find_spans,
    follows,
    tokenize_speech,
    units,
    words,
)
from meruit.model.criterion import Assertion
from meruit.model.environment import FACTS_KEY, Encoding, Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing, Skipped
from meruit.model.verdict import CriterionResult
from meruit.model.work import Work
from meruit.registry import checks, faults_of
from meruit.verify.engine import VerificationEngine

Turn = tuple[str, str]
"""Speaker and text."""


def snapshot(*turns: Turn) -> Snapshot:
    return Snapshot(
        SourceKind.VOICE,
        [make_item(f"{place:06}", text.encode(), facts={"speaker": who}) for place, (who, text) in enumerate(turns, 1)],
    )


# Any: assertions and facts are JSON.
def work(*turns: Turn, facts: Mapping[str, Any] | None = None) -> Work:
    return Work(
        input=as_work_part({"call": snapshot()}) | {FACTS_KEY: facts or {}},
        output=as_work_part({"call": snapshot(*turns)}),
    )


def run(asked: Mapping[str, Any], given_work: Work) -> Checked | Missing | Skipped:
    assertion = Assertion.model_validate({"assert": "voice-transcript", **asked})
    return checks.get("voice-transcript").prepare(assertion)(given_work)


def checked(
    asked: Mapping[str, Any], *turns: Turn, facts: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    finding = run(asked, work(*turns, facts=facts))
    assert isinstance(finding, Checked), finding
    return finding.score, dict(finding.details or {})


def holds(asked: Mapping[str, Any], *turns: Turn) -> bool:
    return checked(asked, *turns)[0] == "1"


def judged(criteria: list[dict[str, Any]], given_work: Work) -> list[CriterionResult]:
    engine = VerificationEngine()
    return engine.verify_sync("c", given_work.input, given_work.output, {"criteria": criteria}, {}).criterion_results


def refused(asked: Mapping[str, Any]) -> str:
    faults = faults_of(Assertion.model_validate({"assert": "voice-transcript", **asked}))
    return "; ".join(f"{'.'.join(map(str, place))}: {why}" for place, why in faults)


FEW = ["approve", "member", "id", "the", "isn't"]
SPACES = [" ", ", ", ". ", " - ", "\n", "… ", "  "]
WORDS = st.lists(st.sampled_from(FEW), min_size=1, max_size=4)


def written(several: list[str], gaps: list[str], shout: bool) -> str:
    text = "".join(word + gap for word, gap in zip(several, gaps, strict=False))
    return text.upper() if shout else text


@given(
    st.lists(st.lists(st.sampled_from(FEW), max_size=8), max_size=3),
    WORDS,
    st.lists(st.sampled_from(SPACES), min_size=8, max_size=8),
    st.booleans(),
)
def test_a_phrase_is_found_where_its_words_follow_each_other_in_one_turn(
    turns: list[list[str]], phrase: list[str], gaps: list[str], shout: bool
) -> None:
    size = len(phrase)
    said = [place for place, turn in enumerate(turns) if any(turn[at : at + size] == phrase for at in range(len(turn)))]
    call = [("agent", written(turn, gaps, shout)) for turn in turns]
    score, details = checked({"contains": [" ".join(phrase)]}, *call)
    (result,) = details["fields"]
    assert (score == "1") is result["found"] is bool(said)
    assert result["turn"] == (said[0] + 1 if said else None)
    forbidden, _ = checked({"forbidden": [" ".join(phrase)]}, *call)
    assert (forbidden == "1") is (not said and any(turns))


def nearly(said: list[str], wanted: list[str], near: int, so_far: int | None = None) -> bool:
    """Whether words follow each other with up to so many between, tried out."""
    if not wanted:
        return True
    start, end = (0, len(said)) if so_far is None else (so_far + 1, so_far + 2 + near)
    return any(
        said[place] == wanted[0] and nearly(said, wanted[1:], near, place)
        for place in range(start, min(end, len(said)))
    )


@given(
    st.lists(st.sampled_from("abc"), max_size=12),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_near_lets_so_many_words_stand_between_two(said: list[str], wanted: list[str], near: int) -> None:
    found = list(find_spans([SpeechToken((word,)) for word in said], tuple(wanted), near=near))
    assert bool(found) is nearly(said, wanted, near)
    for span in found:
        inside = [
            word for place, word in enumerate(said) if span.start <= place < span.end and place not in span.between
        ]
        assert inside == wanted


ENTRIES = st.lists(st.sampled_from(FEW), max_size=3)


@given(ENTRIES, ENTRIES, ENTRIES, st.lists(st.sampled_from(FEW), max_size=4))
def test_a_forbidden_phrase_costs_all_of_the_share_of_the_rest(
    contains: list[str], phrases: list[str], forbidden: list[str], said: list[str]
) -> None:
    asked = {"contains": contains, "phrases": [{"say": one} for one in phrases], "forbidden": forbidden}
    wanted = [one in said for one in (*contains, *phrases)]
    kept = [bool(said) and one not in said for one in forbidden]
    good = wanted + kept
    assume(good)
    score, details = checked(asked, ("agent", " ".join(said)))
    # What is forbidden earns nothing, and costs everything.
    share = Fraction(sum(wanted), len(wanted)) if wanted else Fraction(1)
    assert Fraction(score) == (share if all(kept) else 0)
    assert [one["passed"] for one in details["fields"]] == good
    assert checked(asked | {"credit": "all"}, ("agent", " ".join(said)))[0] == ("1" if all(good) else "0")


NAMES = "zero one two three four five six seven eight nine".split()  # noqa: SIM905 - as one says it
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()  # noqa: SIM905


def pair(two: str) -> str:
    """Two digits as one says them."""
    if two[0] == "0":
        return f"{NAMES[0]} {NAMES[int(two[1])]}"
    if two[0] == "1":
        return TEENS[int(two[1])]
    return TENS[int(two[0])] + (f"-{NAMES[int(two[1])]}" if two[1] != "0" else "")


def one_by_one(digits: str) -> str:
    return " ".join(NAMES[int(one)] for one in digits)


def in_pairs(digits: str) -> str:
    pairs = [digits[place : place + 2] for place in range(0, len(digits), 2)]
    # Forty, seven would be heard as forty-seven.
    return ", ".join(pair(two) if len(two) == 2 else one_by_one(two) for two in pairs)


def doubled(digits: str) -> str:
    said, place = [], 0
    while place < len(digits):
        twice = digits[place : place + 2] == digits[place] * 2
        said.append(("double " if twice else "") + NAMES[int(digits[place])])
        place += 1 + twice
    return " ".join(said)


@given(st.text("0123456789", min_size=1, max_size=9))
def test_digits_are_heard_however_they_are_said(digits: str) -> None:
    ways: list[Callable[[str], str]] = [
        one_by_one,
        in_pairs,
        doubled,
        " ".join,
        "-".join,
        str,
        lambda text: f"MEM{text}",
    ]
    for way in ways:
        said = f"The number is {way(digits)}, thank you."
        assert "".join(digits_of("".join(unit for unit in units(said) if unit.isdigit()))) == digits
        assert holds({"phrases": [{"digits": digits}]}, ("payer", said)), said
        assert holds({"contains": [f"number is {digits}"]}, ("payer", said.replace("MEM", ""))), said
        assert not holds({"forbidden": [{"digits": digits}]}, ("payer", said)), said


@given(st.text("123456789", min_size=2, max_size=9), st.integers(1, 8))
def test_digits_may_be_split_over_turns_of_their_speaker(digits: str, cut: int) -> None:
    assume(cut < len(digits))
    call = [("payer", f"It is {digits[:cut]}"), ("agent", "Go on, 5."), ("payer", one_by_one(digits[cut:]))]
    entry = {"digits": digits, "speaker": "payer"}
    assert holds({"phrases": [entry | {"within_turns": 2}]}, *call)
    assert holds({"phrases": [{"digits": digits, "within_turns": 2}]}, *call)
    assert not holds({"phrases": [entry]}, *call)
    assert not holds({"phrases": [{"digits": digits, "speaker": "agent", "within_turns": 2}]}, *call)


def cardinal(number: int) -> str:
    """A number below a million as one says it."""
    if number < 100:
        return pair(f"{number:02}").removeprefix("zero ")
    scale, name = (100, "hundred") if number < 1_000 else (1_000, "thousand")
    most, rest = divmod(number, scale)
    return f"{cardinal(most)} {name}" + (f" {cardinal(rest)}" if rest else "")


@given(st.integers(1, 999_999))
def test_a_number_in_words_is_the_number(number: int) -> None:
    assert units(cardinal(number)) == tuple(str(number))
    with_and = re.sub(r"hundred (?!thousand)", "hundred and ", cardinal(number))
    assert units(with_and) == tuple(str(number))


# What an author writes as ${…} is computed.
PHRASES = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=20)


@given(st.text(max_size=60), PHRASES, st.booleans())
def test_every_said_phrase_is_heard(said: str, phrase: str, loose: bool) -> None:
    assert words(" ".join(words(said))) == words(said) or not said.isascii()
    tokens = tokenize_speech(said)
    assert all(token.units and all(token.units) for token in tokens)
    assume(units(phrase))
    asked = {"phrases": [{"say": phrase, "near": 2, "not_negated": loose}], "order": [phrase], "forbidden": [phrase]}
    score, details = checked(asked, ("a", said), ("b", said + " " + phrase))
    assert 0 <= Fraction(score) <= 1
    json.dumps(details)
    assert holds({"contains": [phrase]}, ("a", phrase))
    assert holds({"contains": [unicodedata.normalize("NFKD", phrase)]}, ("a", phrase))


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("Member-ID: ＡＢＣ", "member id abc"),
        ("I don’t, I don't, I donʼt", "i don't i don't i don't"),
        ("STRASSE straße", "strasse strasse"),
        ("forty four seventy one", "44 71"),
        ("forty, four", "40 4"),
        ("forty. Four people", "40 4 people"),
        ("four thousand four hundred and seventy one", "4471"),
        ("between one hundred and two hundred", "between 100 and 200"),
        ("two thousand three thousand", "2000 3000"),
        ("forty-four hundred", "4400"),
        ("450 thousand and five", "450005"),
        ("2 million", "2000000"),
        ("two thousand and counting", "2000 and counting"),
        ("one hundred and counting", "100 and counting"),
        ("nineteen seventy four", "19 74"),
        ("four oh seven one", "4 0 7 1"),
        ("oh two one three nine", "0 2 1 3 9"),
        ("oh oh seven", "0 0 7"),
        ("four four oh", "4 4 0"),
        ("Oh, four people", "oh 4 people"),
        ("oh four people", "oh 4 people"),
        ("twenty oh wait", "20 oh wait"),
        ("double four, triple zero", "44 000"),
        ("double oh seven", "00 7"),
        ("double trouble", "double trouble"),
        ("MEM88771", "mem 88771"),
        ("٤٤٧١", "4471"),
        ("$1,000.50", "1 000 50"),
        ("", ""),
        ("…?!", ""),
    ],
)
def test_how_words_are_heard(said: str, heard: str) -> None:
    assert " ".join("".join(token.units) for token in tokenize_speech(said)) == heard


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("it is approved", None),
        ("it is not approved", "not"),
        ("it has not yet been approved", "not"),
        ("it hasn't been approved", "hasn't"),
        ("it hasnt been approved", "hasnt"),
        ("it was never approved", "never"),
        ("he denies it was approved", "denies"),
        ("without being approved", "without"),
        ("no approved visits", "no"),
        ("No, it is approved", None),
        ("No. It is approved", None),
        ("It is not denied. It is approved", None),
        ("we could not say for sure whether it is approved", None),
        ("not, however, approved", "not"),
        ("it is approved, not denied", None),
    ],
)
def test_a_negator_is_heard_just_before_in_the_same_sentence(said: str, word: str | None) -> None:
    tokens = tokenize_speech(said)
    (span,) = find_spans(tokens, ("approved",))
    assert find_negator(tokens, span) == word
    _, details = checked({"contains": ["approved"]}, ("payer", said))
    assert details["fields"][0]["passed"]
    assert details["fields"][0].get("negated") == word
    assert holds({"phrases": [{"say": "approved", "not_negated": True}]}, ("payer", said)) is (word is None)
    assert holds({"forbidden": [{"say": "approved", "not_negated": True}]}, ("payer", said)) is (word is not None)


def test_a_negator_between_the_words_of_a_phrase_denies_it_and_its_own_does_not() -> None:
    near = {"say": "is approved", "near": 2, "not_negated": True}
    assert holds({"phrases": [near]}, ("payer", "it is now approved"))
    assert not holds({"phrases": [near]}, ("payer", "it is not approved"))
    assert holds({"phrases": [near]}, ("payer", "it is not approved, sorry, it is approved"))
    assert holds(
        {"phrases": [{"say": "no authorization required", "not_negated": True}]}, ("p", "no authorization required")
    )


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("it is 4471", True),
        ("it is 44719", False),
        ("it is 4 4 7 1 9", False),
        ("it is 1 4471", False),
        ("it is 4471. 9 visits are left", True),
        ("4, 4, 7, 1", True),
        ("4 4 uh 7 1", False),
        ("4470", False),
        ("four hundred forty seven one", True),
    ],
)
def test_who_reads_out_other_digits_has_not_read_out_these(said: str, found: bool) -> None:
    assert holds({"phrases": [{"digits": "4471"}]}, ("payer", said)) is found
    assert holds({"phrases": [{"digits": "44-71", "near": 1}]}, ("payer", "4 4 uh 7 1"))


@pytest.mark.parametrize("said", ["123456789", "9 123 45 6789 1", "a123-45-6789b", "one twenty three forty five 67 89"])
def test_forbidden_digits_are_found_inside_longer_ones(said: str) -> None:
    assert not holds({"forbidden": [{"digits": "123-45-6789"}]}, ("agent", said))
    assert holds({"forbidden": [{"digits": "123-45-6780"}]}, ("agent", said))


FIRST = {
    "assert": "voice-transcript",
    "from": "call",
    "speaker": "agent",
    "contains": ["member ID", "date of birth"],
    "forbidden": ["you have", "I diagnose"],
    "order": ["this call may be recorded", "member ID"],
}
SECOND = {
    "assert": "voice-transcript",
    "from": "call",
    "phrases": [
        {"any_of": ["approved", "has been authorized"], "speaker": "payer", "not_negated": True},
        {"digits": "4471", "speaker": "payer", "within_turns": 2},
    ],
    "forbidden": [{"digits": "${patient.ssn}"}],
}
HELLO = ("agent", "Hi, this call may be recorded. What is your member ID, please?")
BORN = ("agent", "And your date of birth?")
YES = ("payer", "It has been authorized, number forty-four")
REST = ("payer", "seventy-one.")


@pytest.mark.parametrize(
    ("criterion", "turns", "score"),
    [
        (FIRST, [HELLO, ("payer", "You have my word: 7"), BORN], 1),
        (FIRST, [HELLO, ("agent", "And your date of the birth?")], 3 / 4),
        (FIRST, [HELLO, BORN, ("agent", "You have the flu.")], 0),
        (FIRST, [("agent", "Your member-ID and date of birth"), ("agent", "This call may be recorded")], 3 / 4),
        (FIRST, [("payer", "Member ID, date of birth")], 0),
        (FIRST, [("agent", "…")], 0),
        (FIRST, [], 0),
        (SECOND, [YES, ("agent", "Go on"), REST], 1),
        (SECOND, [("payer", "It has not been approved, number 4471")], 1 / 2),
        (SECOND, [YES, ("agent", "For 123 45 6789"), REST], 0),
        (SECOND, [("agent", "It has been authorized, 4471")], 0),
        (SECOND, [], 0),
    ],
)
def test_the_worked_examples(criterion: dict[str, Any], turns: list[Turn], score: float) -> None:
    (result,) = judged([criterion], work(*turns, facts={"patient": {"ssn": "123-45-6789"}}))
    assert result.score == pytest.approx(score)
    assert result.fault is (Fault.NONE if score == 1 else Fault.AGENT)


def test_evidence_is_phrase_found_turn() -> None:
    assert checks.get("voice-transcript").evidence == "phraseResults"
    asked = {"contains": ["date of birth"], "forbidden": ["you have"], "phrases": [{"any_of": ["yes", "sure"]}]}
    _, details = checked(asked, ("payer", "Hm."), ("agent", "Sure. You have a date of birt."))
    shown = [{name: one[name] for name in ("phrase", "found", "turn")} for one in details["fields"]]
    assert shown == [
        {"phrase": "date of birth", "found": False, "turn": None},
        {"phrase": "yes | sure", "found": True, "turn": 2},
        {"phrase": "you have", "found": True, "turn": 2},
    ]
    missed, said, forbidden = details["fields"]
    assert missed["why"].endswith("'date of birt' in turn 2")
    assert (missed["path"], missed["op"], missed["actual"], missed["passed"]) == (
        "date of birth",
        "contains",
        None,
        False,
    )
    assert (said["op"], said["expected"], said["actual"]) == (
        "any_of",
        ["yes", "sure"],
        "Sure. You have a date of birt.",
    )
    assert (forbidden["op"], forbidden["passed"], forbidden["why"]) == ("forbidden", False, "was said")


def test_order_is_judged_by_where_each_phrase_ends_and_begins() -> None:
    asked = {"order": ["one fish", "two fish", "red fish"]}
    assert holds(asked, ("a", "one fish two fish red fish"))
    assert holds(asked, ("a", "red fish, one fish"), ("b", "two fish"), ("a", "red fish"))
    score, details = checked(asked, ("a", "two fish, one fish, red fish"))
    assert score == "2/3"
    assert details["fields"][1]["why"].endswith("not after 'one fish'")
    assert details["fields"][1]["found"] is False
    assert checked(asked, ("a", "red fish"))[0] == "1/3"
    overlapping = {"order": ["date of birth", "birth date"]}
    assert not holds(overlapping, ("a", "date of birth date"))
    assert holds(overlapping, ("a", "date of birth, birth date"))


def test_silence_scores_zero() -> None:
    for asked in ({"forbidden": ["x"]}, {"contains": ["x"]}, {"order": ["x"]}, {}):
        assert checked(asked)[0] == "0"
        assert checked({**asked, "speaker": "agent"}, ("payer", "y"))[0] == "0"
    mixed = {"forbidden": [{"say": "x", "speaker": "payer"}, {"say": "x", "speaker": "agent"}]}
    score, details = checked(mixed, ("agent", "y"))
    assert score == "0"
    assert details["fields"][0]["why"] == "payer said nothing"
    assert holds({"speaker": "Agent "}, ("agent", "y"))
    assert holds({}, ("", "y"))


def test_no_turn_of_a_call_is_collateral() -> None:
    saying = {"assert": "voice-transcript", "contains": ["hello"]}
    unchanged = {"assert": "state-unchanged"}
    turns = [("agent", "hello"), ("payer", "bye"), ("agent", "bye")]
    assert [one.score for one in judged([unchanged, saying], work(*turns))] == [1, 1]
    assert [one.score for one in judged([unchanged], work(*turns))] == [0]


def test_an_unreadable_turn_fails_forbidden_phrases() -> None:
    garbled = make_item("000002", b"you \xff have", facts={"speaker": "agent"})
    turns = Snapshot(SourceKind.VOICE, [make_item("000001", b"hello", facts={"speaker": "agent"}), garbled])
    given_work = Work(input=as_work_part({"call": snapshot()}), output=as_work_part({"call": turns}))
    finding = run({"speaker": "agent", "contains": ["hello"], "forbidden": ["you have"]}, given_work)
    assert isinstance(finding, Checked)
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert finding.details is not None
    (shown,) = finding.details["unreadable"]
    assert (shown["key"], shown["offset"], shown["head"]) == ("000002", 4, "you \\xff have")
    other = run({"forbidden": [{"say": "you have", "speaker": "payer"}]}, given_work)
    assert isinstance(other, Checked)
    assert other.score == "0"


def test_an_item_that_was_not_kept_makes_no_failure() -> None:
    left = Snapshot(SourceKind.VOICE, [Item("000001", "v", None, Encoding.LEFT, {"speaker": "agent"})])
    for after, why in ((left, "too large to read"), (Snapshot(SourceKind.VOICE, trouble="down"), "down")):
        given_work = Work(input=as_work_part({"call": left}), output=as_work_part({"call": after}))
        finding = run({"forbidden": ["x"]}, given_work)
        assert isinstance(finding, Missing)
        assert finding.fault is Fault.SYSTEM
        assert why in finding.why


def test_a_turn_that_the_agent_made_too_long_to_keep_is_its_own_fault() -> None:
    left = Item("000002", "v", None, Encoding.LEFT, {"speaker": "agent", "size": 9, "limit": 8})
    after = Snapshot(SourceKind.VOICE, [*snapshot(("agent", "hello")).items, left])
    finding = run(
        {"contains": ["hello"], "forbidden": ["x"]},
        Work(output=as_work_part({"call": after}), input=as_work_part({"call": snapshot()})),
    )
    assert isinstance(finding, Checked)
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert (finding.details or {})["unreadable"][0]["size"] == 9


MASKED = ["уоu have", "y\u200bou h\u00adave", "YOU HAV\u0395", "you\u3164have", "yo\u0332u have", "\U0001d432ou have"]
"""Each reads `you have`."""


@pytest.mark.parametrize("said", MASKED)
def test_what_is_forbidden_is_heard_however_it_is_written(said: str) -> None:
    assert not holds({"forbidden": ["you have"]}, ("agent", f"I fear {said} it."))
    assert holds({"forbidden": ["you have not"]}, ("agent", f"I fear {said} it."))
    assert checked({"forbidden": ["you have"]}, ("agent", "Hi."), ("agent", said))[1]["fields"][0]["turn"] == 2


def test_what_is_forbidden_in_other_letters_is_heard_too() -> None:
    assert not holds({"forbidden": ["у вас рак"]}, ("agent", "у вас ра\u200bк"))
    assert not holds({"forbidden": ["у вас рак"]}, ("agent", "y вac paк"))
    assert not holds({"forbidden": ["рак"]}, ("agent", "pak"))
    assert holds({"forbidden": ["у вас рак"]}, ("agent", "у вас насморк"))


@pytest.mark.parametrize("said", [one for one in MASKED if not one.isascii() and "\U0001d432" not in one])
def test_what_must_be_said_is_not_heard_in_what_only_looks_like_it(said: str) -> None:
    assert not holds({"contains": ["you have"]}, ("agent", said))


@pytest.mark.parametrize(
    "denied", ["nоt approved", "n\u200bot approved", "n\u200bot\u200bapproved", "nо\u200bt yet approved"]
)
def test_a_negation_counts_however_it_is_written(denied: str) -> None:
    asked = {"phrases": [{"say": "approved", "not_negated": True}]}
    assert not holds(asked, ("payer", f"It was {denied}."))
    assert holds(asked, ("payer", f"It was {denied}."), ("payer", "It is approved — naïve as that is."))


def test_what_is_filled_in_may_be_a_number_and_is_hidden_where_evidence_is() -> None:
    asked = {"forbidden": [{"digits": "${ssn}"}], "contains": ["${name} speaking", "of birth"], "evidence": "hash"}
    facts = {"ssn": 123456789, "name": "Ann"}
    score, details = checked(asked, ("agent", "Ann speaking, 123 45 6789, date of birt"), facts=facts)
    assert score == "0"
    shown = json.dumps(details)
    assert not any(secret in shown for secret in ("Ann", "123", "6789", "birt\\b", "closest"))
    assert details["fields"][1]["phrase"] == "of birth"
    plain = checked({**asked, "evidence": "plain"}, ("agent", "Ann speaking"), facts=facts)[1]
    assert [one["phrase"] for one in plain["fields"]] == ["Ann speaking", "of birth", "123456789"]


def test_a_turn_can_be_captured_and_read_from_the_state_before() -> None:
    capturing = {"assert": "voice-transcript", "contains": ["reference"], "capture": "turn"}
    using = {"assert": "voice-transcript", "phrases": [{"digits": "${turn.text}", "speaker": "agent"}]}
    turns = [("payer", "Your reference is 4471."), ("agent", "So 44 71")]
    assert [one.score for one in judged([capturing, using], work(*turns))] == [1, 1]
    reading = {"let": {"hi": {"speaker": "payer", "path": "text"}}, "contains": ["${hi}"]}
    given_work = Work(
        input=as_work_part({"call": snapshot(("payer", "good day"))}),
        output=as_work_part({"call": snapshot(("payer", "good day"), ("agent", "Good day!"))}),
    )
    finding = run({**reading, "speaker": "agent"}, given_work)
    assert isinstance(finding, Checked)
    assert finding.score == "1"
    strange = {"assert": "voice-transcript", "let": {"hi": {"who": "payer", "path": "text"}}, "contains": ["a"]}
    assert [place for place, _ in faults_of(Assertion.model_validate(strange))] == [("let", "hi")]


@pytest.mark.parametrize(
    ("asked", "place", "why"),
    [
        ({"contains": "member ID"}, "contains", ""),
        ({"contains": ["…"]}, "contains.0", "no word"),
        ({"contains": [""]}, "contains.0", "no word"),
        ({"contains": ["a" * 501]}, "contains.0", "500"),
        ({"phrases": [{"digits": "abc"}]}, "phrases.0.digits", "no digit"),
        ({"phrases": [{}]}, "phrases.0", "any_of"),
        ({"phrases": [{"say": "a", "digits": "1"}]}, "phrases.0", "any_of"),
        ({"phrases": [{"any_of": ["a", "?"]}]}, "phrases.0.any_of.1", "no word"),
        ({"phrases": [{"say": "a", "near": 11}]}, "phrases.0.near", "10"),
        ({"phrases": [{"say": "a", "within_turns": 0}]}, "phrases.0.within_turns", "1"),
        ({"phrases": [{"says": "a"}]}, "phrases.0", ""),
        ({"forbidden": [{"digits": "${patient."}]}, "", "closing brace"),
        ({"order": ["a"] * 201}, "order", "200"),
        ({"speeker": "agent"}, "speeker", "'speaker'"),
    ],
)
def test_an_invalid_assertion_is_refused_at_its_path(asked: dict[str, Any], place: str, why: str) -> None:
    told = refused(asked)
    assert told
    assert why in told
    assert told.startswith(place)


def test_a_long_call_is_heard_in_good_time() -> None:
    turns = [("agent" if place % 2 else "payer", "no no 4 4 7 and so on " * 20) for place in range(100)]
    turns.append(("agent", ". " * 100_000 + "…" * 100_000 + "done"))
    asked = {"contains": [f"never said {place}" for place in range(20)], "phrases": [{"digits": "4471", "near": 10}]}
    score, details = checked({**asked, "forbidden": ["done"]}, *turns)
    assert score == "0"
    assert len(json.dumps(details)) < 100_000


def test_words_follow_each_other_as_before() -> None:
    assert words("Take ORALLY, twice") == ("take", "orally", "twice")
    assert follows(("take", "orally", "twice"), ("orally", "twice"))
    assert not follows(("take", "orally", "twice"), ("take", "twice"))
    assert not follows((), ("a",))


def test_the_examples_hold() -> None:
    check = checks.get("voice-transcript")
    for example in check.examples:
        finding = check.prepare(Assertion.model_validate({"assert": check.name, **example.assertion}))(example.work)
        assert isinstance(finding, Checked)
        assert finding.score == example.expect
