"""What a message suggests for a name that is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.config import Settings
from meruit.errors import ConfigError, UnknownName
from meruit.model.contract import Budget
from meruit.registry import metrics
from meruit.suggestions import nearest, similar_names

METRICS = metrics.names()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("f1", ["f1_score"]),
        ("rouge_score", ["rouge1", "rouge2", "rougeL"]),
        ("rouge", ["rouge1", "rouge2", "rougeL"]),
        ("ROUGE-L", ["rougeL"]),
        ("f1Score", ["f1_score"]),
        ("bleu", ["bleu_score"]),
        ("acuracy", ["accuracy"]),
        ("accuracy_score", ["accuracy"]),
        ("word_cuont", ["word_count"]),
        ("latency", ["latency_ms"]),
        ("", []),
        ("日本", []),
        ("x" * 5_000, []),
    ],
)
def test_a_suggestion_is_of_the_same_kind(written: str, meant: list[str]) -> None:
    assert similar_names(written, METRICS) == meant


def test_another_short_word_is_another_thing() -> None:
    assert similar_names("max_cpa", ["max_cpc", "currency"]) == []
    assert similar_names("max_cpa", Budget.model_fields) == ["max_cpa_total"]
    assert similar_names("EUX", ["EUR", "USD"]) == ["EUR"]


def test_many_relatives_are_not_listed() -> None:
    assert similar_names("task_overview", [f"task_{number}" for number in range(9)]) == []


@pytest.mark.parametrize(
    ("written", "end"),
    [("rouge", " (did you mean 'rouge1', 'rouge2' or 'rougeL'?)"), ("f1", " (did you mean 'f1_score'?)"), ("zz", "")],
)
def test_a_message_names_all_that_may_be_meant(written: str, end: str) -> None:
    assert nearest(written, METRICS) == end


@given(st.text(max_size=20), st.lists(st.text(max_size=12), max_size=8))
def test_only_known_names_are_suggested(written: str, known: list[str]) -> None:
    meant = similar_names(written, known)
    assert len(meant) <= 3
    assert {*meant} <= {*known}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rogue_score", "'rouge1', 'rouge2' or 'rougeL'"),
        ("latencies", "'latency_ms'"),
        ("matches_shema", "'matches_schema'"),
        ("f1", "'f1_score'"),
    ],
)
def test_a_type_suggests_the_metrics_of_its_kind(written: str, meant: str) -> None:
    with pytest.raises(UnknownName, match=meant):
        metrics.get(written)


def test_a_setting_is_suggested_by_its_beginning() -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.parse("verification: {max_criteria: 5}\n", "settings.yaml")
    assert "'max_criteria_per_task'" in str(refused.value)
