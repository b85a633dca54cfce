"""Mutants are damaged copies: bounded, named, and never the original changed."""

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import check_golden

from meruit.verify.lint import mutations as module
from meruit.verify.lint.mutations import HUGE, MAX_AIMED, MAX_ALONE, MAX_ITEMS, MAX_PLACES, MAX_SIZE, MAX_TEXT, mutants

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)

MOST_AT_ONE_PLACE = 6
"""What can be done to a text, and dropping it."""


def named(output: dict[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {mutant.name: mutant.output for mutant in mutants(output, metadata or {})}


@given(objects, objects)
def test_mutants_never_change_the_original(output: dict[str, Any], metadata: dict[str, Any]) -> None:
    before = copy.deepcopy((output, metadata))
    made = list(mutants(output, metadata))
    assert (output, metadata) == before
    # Nor does one mutant's owner reach the original through what both share at the top.
    assert all(mutant.output is not output or mutant.metadata is not metadata for mutant in made)


@given(objects, objects)
def test_mutants_are_few_and_each_has_a_name(output: dict[str, Any], metadata: dict[str, Any]) -> None:
    made = list(mutants(output, metadata))
    assert len(made) <= 4 + MOST_AT_ONE_PLACE * (MAX_PLACES + len(metadata))
    assert all(mutant.name and isinstance(mutant.output, dict) for mutant in made)


@given(objects)
def test_every_member_is_dropped_once(output: dict[str, Any]) -> None:
    dropped = [mutant.output for mutant in mutants(output, {}) if mutant.name.endswith(" dropped")]
    for key in output:
        rest = {name: value for name, value in output.items() if name != key}
        assert rest in dropped


@given(st.dictionaries(st.text(), st.text(min_size=1), min_size=1))
def test_mutants_of_texts_are_json(output: dict[str, Any]) -> None:
    for mutant in mutants(output, {}):
        assert json.loads(json.dumps(mutant.output)) == mutant.output


@pytest.mark.parametrize(
    ("value", "damaged"),
    [
        (True, [False]),
        (5, [0, 1, 5_000 + HUGE, -5_000 - HUGE]),
        (-0.5, [0, 1, 500.0 + HUGE, -500.0 - HUGE]),
        ("one two", ["", "one", "two one", "¤¤¤ ¤¤¤", "one two ¤ " * 100]),
        ("", ["", "", "", "¤", " ¤ " * 100]),
        ([1, 2], [[], [1], [1, 2] * 100]),
        ({"a": 1}, [None, "¤"]),
        (None, [None, "¤"]),
    ],
)
def test_what_can_be_done_to_a_value(value: Any, damaged: list[Any]) -> None:
    # What is done to a value inside it has a longer path.
    made = {name: output for name, output in named({"x": value}).items() if name.startswith("x ")}
    assert made.pop("x dropped") == {}
    assert list(made.values()) == [{"x": expected} for expected in damaged]


@pytest.mark.golden
def test_mutants_are_named_after_what_was_done() -> None:
    output = {"yes": True, "n": 5, "text": "one two", "items": [1], "none": None}
    made = mutants(output, {"steps": 3}, words=("bad",), sizes=(4,))
    check_golden(
        "verify/mutants",
        "".join(
            f"{mutant.name}: {json.dumps([mutant.output, mutant.metadata], ensure_ascii=False)[:120]}\n"
            for mutant in made
        ),
    )


def test_places_inside_are_damaged_one_at_a_time() -> None:
    made = named({"rows": [{"label": "a"}, {"label": "b"}]})
    assert made["rows.1.label emptied"] == {"rows": [{"label": "a"}, {"label": ""}]}
    assert made["rows.0 dropped"] == {"rows": [{"label": "b"}]}
    assert made["rows.0.label dropped"] == {"rows": [{}, {"label": "b"}]}


def test_the_gravest_come_first() -> None:
    output = {"text": "good", "n": 7, "yes": True, "rows": [{"n": 2.5}], "none": None}
    first = list(itertools.islice(mutants(output, {}), 3))
    assert [mutant.name for mutant in first] == [
        "every value spoilt",
        "every value set to 0",
        "every value set to 1",
    ]
    assert first[0].output == {"text": "¤", "n": 7, "yes": False, "rows": [{"n": 2.5}], "none": None}
    assert first[1].output == {"text": "good", "n": 0, "yes": True, "rows": [{"n": 0}], "none": None}
    assert first[2].output == {"text": "good", "n": 1, "yes": True, "rows": [{"n": 1}], "none": None}


def test_metadata_is_damaged_too() -> None:
    made = {mutant.name: mutant for mutant in mutants({"text": "x"}, {"duration_ms": 3, "agent": "a"})}
    slow = made["metadata.duration_ms made huge"]
    assert (slow.output, slow.metadata) == ({"text": "x"}, {"duration_ms": 3_000 + HUGE, "agent": "a"})


def test_a_wide_output_is_damaged_in_so_many_places_and_no_more() -> None:
    wide = {"rows": [{"n": number} for number in range(10_000)], **dict.fromkeys(map(str, range(10_000)), 1)}
    assert sum(name.endswith(" dropped") for name in named(wide)) == MAX_PLACES


def test_a_long_list_inside_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(list[int]):
        def __iter__(self) -> Any:
            return itertools.count()

    monkeypatch.setattr(module, "_LEAF_DAMAGE", {})
    monkeypatch.setattr(module, "_mutations_of", lambda _value: iter(()))
    monkeypatch.setattr(module, "_drop_at", lambda value, _path: value)
    monkeypatch.setattr(module, "_at", lambda _value, _path: 0)
    assert sum(name.endswith(" dropped") for name in named({"endless": Endless()})) == MAX_PLACES


def test_a_deep_output_is_damaged_down_to_a_limit() -> None:
    deep: Any = "bottom"
    for _ in range(5_000):
        deep = {"a": [deep]}
    depths = [len(name.split(" ")[0].split(".")) for name in named({"deep": deep}) if name.startswith("deep")]
    assert max(depths) == module.MAX_DEPTH


def test_blowing_up_has_a_limit() -> None:
    long = named({"text": "x" * 50_000, "rows": [0] * 15_000, "huge": "y" * MAX_TEXT})
    assert MAX_TEXT / 2 < len(long["text blown up"]["text"]) <= MAX_TEXT
    assert len(long["rows blown up"]["rows"]) == 30_000
    assert len(long["huge blown up"]["huge"]) <= 2 * (MAX_TEXT + 3)
    assert MAX_ITEMS < 30_000


def test_nothing_to_damage_is_left_as_it_is_or_given_more_fields() -> None:
    assert [mutant.output for mutant in mutants({}, {})] == [{}, {}, {}, {"¤": "¤"}]


# What criteria speak of.


def aimed(output: dict[str, Any], words: tuple[str, ...] = (), sizes: tuple[int, ...] = ()) -> dict[str, Any]:
    usual = named(output)
    made = {mutant.name: mutant.output for mutant in mutants(output, {}, words=words, sizes=sizes)}
    return {name: damaged for name, damaged in made.items() if name not in usual}


def test_words_of_criteria_are_added_to_texts_and_take_their_place() -> None:
    made = aimed({"text": "good", "rows": [{"label": "a"}], "n": 1}, words=("bad", "worse"))
    assert list(made.values()) == [
        {"text": "good bad worse", "rows": [{"label": "a"}], "n": 1},
        {"text": "bad", "rows": [{"label": "a"}], "n": 1},
        {"text": "worse", "rows": [{"label": "a"}], "n": 1},
        {"text": "good", "rows": [{"label": "a bad worse"}], "n": 1},
        {"text": "good", "rows": [{"label": "bad"}], "n": 1},
        {"text": "good", "rows": [{"label": "worse"}], "n": 1},
    ]


def test_words_of_criteria_become_fields_and_replace_none() -> None:
    made = [mutant.output for mutant in mutants({"id": 1}, {}, words=("id", "name"))]
    assert [output for output in made if len(output) > 1] == [{"¤": "¤", "id": 1, "name": "¤"}]


@given(st.text(max_size=30), st.lists(st.integers(), max_size=5), st.integers(1, 40))
def test_values_are_brought_to_the_sizes_of_criteria(text: str, items: list[int], size: int) -> None:
    made = aimed({"text": text, "items": items, "n": 3, "yes": True}, sizes=(size,))
    assert len(made[f"text brought to {size} characters"]["text"]) == size
    assert len(made[f"text brought to {size} words"]["text"].split()) == size
    assert len(made[f"items brought to {size} items"]["items"]) == size
    assert size < 2 or made[f"n set to {size}"]["n"] == size
    assert not any(name.startswith("yes") for name in made)


def test_only_a_number_is_brought_to_a_size_that_no_text_has() -> None:
    output = {"text": "good", "items": ["a"], "n": 5}
    assert aimed(output, sizes=(MAX_SIZE + 1, -2)).keys() == {f"n set to {MAX_SIZE + 1}", "n set to -2"}


def test_the_run_is_brought_to_the_sizes_of_criteria_too() -> None:
    made = {mutant.name: mutant.metadata for mutant in mutants({}, {"duration_ms": 3}, sizes=(2_001,))}
    assert made["metadata.duration_ms set to 2001"] == {"duration_ms": 2_001}


def test_what_is_made_for_criteria_has_a_limit() -> None:
    output = {str(number): "text" for number in range(MAX_PLACES)}
    made = aimed(output, words=tuple(map(str, range(10_000))), sizes=(9, 99))
    assert len(made) == MAX_AIMED
    assert sum(name.startswith("0 replaced by") for name in made) == MAX_ALONE
