"""Questions, settings and versions of judges: what is refused when it is read, and what makes another judge."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError
from tests.judges.asking import PARAMS, criteria, engine_of, judges_of, question

from meruit.config import Settings
from meruit.errors import AuthorError, ConfigError, CriteriaError, UnreadableAnswer
from meruit.judges.answer import ParsedAnswer, read_answer
from meruit.judges.api import APIS, TokenUse
from meruit.judges.settings import JudgeSettings, find_judge_faults
from meruit.judges.voter import find_judge
from meruit.metrics.support.judge_question import read_question
from meruit.model.criterion import SuccessCriteria
from meruit.registry import Ask

MODEL = {"model": "m-1"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"question": None}, "question"),
        ({"question": "  "}, "question"),
        ({"question": "x" * 20_001}, "question"),
        ({"rubric": 3}, "rubric"),
        ({"choices": None}, "choices"),
        ({"scale": [1, 5]}, "choices"),
        ({"choices": ["yes"]}, "choices"),
        ({"choices": ["yes", "Yes"]}, "choices"),
        ({"choices": ["yes", True]}, "quote"),
        ({"choices": ["yes", "no\n"]}, "choice"),
        ({"choices": ["yes", "n" * 201]}, "choice"),
        ({"choices": None, "scale": [5, 1]}, "scale"),
        ({"choices": None, "scale": [0, 101]}, "scale"),
        ({"choices": None, "scale": [False, 5]}, "scale"),
        ({"choices": None, "scale": 5}, "scale"),
        ({"sees": []}, "sees"),
        ({"sees": ["metadata"]}, "sees"),
        ({"votes": 0}, "votes"),
        ({"votes": True}, "votes"),
        ({"votes": 4, "agree": 2}, "agree"),
        ({"votes": 3, "agree": 4}, "agree"),
        ({"wotes": 3}, "votes"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(change: Mapping[str, Any], word: str) -> None:
    with pytest.raises(AuthorError, match=re.escape(word)):
        question(**change)


def test_a_question_says_what_it_leaves_out() -> None:
    asked = question(choices=None, scale=[-1, 1], sees="output")
    assert (asked.votes, asked.agree, asked.sees, asked.scale) == (3, 2, ("output",), (-1, 1))
    with pytest.raises(AuthorError):
        read_question(Ask(PARAMS, ("yes",)))


def test_an_unknown_judge_is_refused_with_those_that_exist() -> None:
    engine = engine_of(judges_of({"polite": MODEL, "careful": MODEL}))
    wanted = SuccessCriteria.model_validate(criteria(judge="polight"))
    with pytest.raises(CriteriaError, match=r"polite.*careful, polite"):
        engine.compile_or_raise(wanted)
    with pytest.raises(CriteriaError, match="no `judges`"):
        engine_of(judges_of({})).compile_or_raise(wanted)


def test_a_panel_gives_each_member_a_vote() -> None:
    judges = {"a": JudgeSettings(model="a"), "b": JudgeSettings(model="b"), "p": JudgeSettings(panel=("a", "b"))}
    with pytest.raises(AuthorError, match="votes"):
        find_judge(judges, question(judge="p", votes=1))


BASE = JudgeSettings.model_validate({**MODEL, "base_url": "https://models.example/v1"})


def version(settings: JudgeSettings = BASE, **params: Any) -> str:
    return find_judge({"polite": settings}, question(**params)).version


@pytest.mark.parametrize(
    "params",
    [
        {"question": "Is it kind?"},
        {"rubric": "Be strict."},
        {"choices": ["no", "yes", "partly"]},
        {"sees": ["output"]},
        {"votes": 5},
        {"agree": 3},
    ],
)
def test_another_question_is_another_judge(params: dict[str, Any]) -> None:
    assert version(**params) != version()


@pytest.mark.parametrize("name", ["model", "temperature", "seed", "max_tokens", "answer", "api"])
def test_another_model_or_parameter_is_another_judge(name: str) -> None:
    value = {"model": "m-2", "temperature": 1.0, "seed": 1, "max_tokens": 99, "answer": "tool", "api": "anthropic"}
    assert version(BASE.model_copy(update={name: value[name]})) != version()


def test_name_and_address_are_no_part_of_the_version() -> None:
    moved = BASE.model_copy(update={"base_url": "https://other.example/v1", "key_variable": "K", "timeout_s": 9.0})
    assert version(moved) == version()
    assert find_judge({"x": BASE}, question(judge="x")).version == version()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": "m", "panel": ["a"]},
        {"panel": ["a"], "temperature": 1},
        {"model": "m", "base_url": "ftp://x"},
        {"model": "m", "base_url": "https://user:pass@host/v1"},
        {"model": "m", "temperature": 3},
        {"model": "m", "api": "other"},
        {"model": "m", "key": "sk-secret"},
    ],
)
def test_settings_of_a_judge_are_validated(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JudgeSettings.model_validate(settings)


def test_panels_and_cascades_list_judges_that_exist() -> None:
    written = {
        "a": {"model": "a"},
        "p": {"panel": ["a", "c"]},
        "c": {"cascade": ["a", "x"]},
        "d": {"cascade": ["c"]},
    }
    faults = find_judge_faults({name: JudgeSettings.model_validate(one) for name, one in written.items()})
    assert [name for name, _ in faults] == ["p", "c", "d"]
    with pytest.raises(ConfigError):
        Settings.parse("judges: {p: {panel: [x]}}", "settings.yaml")


def test_seeds_differ_between_votes() -> None:
    found = find_judge({"polite": BASE.model_copy(update={"seed": 7})}, question())
    assert [found.voter(0, ordinal).seed(ordinal) for ordinal in (1, 2, 3)] == [7, 8, 9]
    assert BASE.url == "https://models.example/v1"
    assert JudgeSettings(model="m", api="anthropic").url == "https://api.anthropic.com"


@pytest.mark.parametrize(("said", "answer"), [(3, 3), ("4", 4), (5.0, 5)])
def test_numbers_on_a_scale_are_read(said: object, answer: int) -> None:
    asked = question(choices=None, scale=[1, 5])
    assert read_answer({"answer": said, "reason": 7}, asked) == ParsedAnswer(answer, "")


@pytest.mark.parametrize("said", [0, 6, 2.5, True, "five", None, "1e0"])
def test_other_numbers_are_not_votes(said: object) -> None:
    with pytest.raises(UnreadableAnswer):
        read_answer({"answer": said}, question(choices=None, scale=[1, 5]))


@pytest.mark.parametrize("said", [None, "{", "{}", [], {"reason": "r"}, "[" * 100_000])
def test_what_is_not_an_object_with_an_answer_is_unreadable(said: object) -> None:
    with pytest.raises(UnreadableAnswer):
        read_answer(said, question())


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("payload", [None, [], {}, {"choices": [3], "content": 3, "usage": []}, {"usage": {"x": True}}])
def test_a_reply_of_another_form_says_nothing(api: str, payload: object) -> None:
    found = APIS[api].read(payload)
    assert (found.reply, found.refusal, found.tokens) == (None, None, TokenUse())


def test_a_filtered_answer_is_a_refusal_and_cached_tokens_count() -> None:
    filtered = {"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}
    assert APIS["openai"].read(filtered).refusal
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5, "output_tokens": 1}
    assert APIS["anthropic"].read({"usage": usage}).tokens == TokenUse(12, 1)
