"""The score is not an oracle: tries of agents are limited, their scores are coarse, and probing is flagged."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.api.conftest import Deployment, code_of

from meruit.model.access import AGENT_TRIES, Role

VOCABULARY = [f"word{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(256)]
HIDDEN = {VOCABULARY[17], VOCABULARY[90], VOCABULARY[201]}
BUDGET = AGENT_TRIES
KEYWORDS = {
    "criteria": [
        {
            "metric": "contains_keywords",
            "id": one,
            "metric_type": "percentage",
            "comparison": "contains_all",
            "threshold": [one],
        }
        for one in sorted(HIDDEN)
    ]
}


class OutOfTries(Exception):
    """The service answers no more questions."""


def hunt(count: Callable[[Sequence[str]], int]) -> tuple[set[str], int]:
    """Find hidden words by halves, from how many of them each output holds; with the number of questions."""
    asked = 0

    def search(words: Sequence[str], within: int) -> Iterator[str]:
        nonlocal asked
        if not within:
            return
        if within == len(words):
            yield from words
            return
        left = words[: len(words) // 2]
        asked += 1
        found = count(left)
        yield from search(left, found)
        yield from search(words[len(left) :], within - found)

    seen = set[str]()
    try:
        seen.update(search(VOCABULARY, len(HIDDEN)))
    except OutOfTries:
        asked -= 1
    return seen, asked


@pytest.fixture
def operator(either: Deployment, tenant: str) -> str:
    key = either.key(Role.OPERATOR, tenant)
    assert either.ask("POST", "/v1/criteria", key=key, json={"name": "job", "criteria": KEYWORDS}).status_code == 201
    return key


def submit(either: Deployment, key: str, words: Sequence[str], **more: Any) -> Any:
    body = {"criteria": "job", "output": {"text": " ".join(words)}, **more}
    return either.ask("POST", "/v1/verify", key=key, json=body)


def test_exact_scores_without_a_limit_are_an_oracle(either: Deployment, operator: str) -> None:
    def count(words: Sequence[str]) -> int:
        score: float = submit(either, operator, words).json()["result"]["score"]
        return round(3 * score)

    found, asked = hunt(count)
    assert found == HIDDEN
    assert asked <= 26


@pytest.mark.usefixtures("operator")
def test_an_agent_finds_no_hidden_words_within_its_budget(either: Deployment, tenant: str) -> None:
    agent = either.key(Role.AGENT, tenant)
    left = [BUDGET]

    def count(words: Sequence[str]) -> int:
        reply = submit(either, agent, words)
        if reply.status_code == 403:
            assert code_of(reply) == "no_tries_left"
            raise OutOfTries
        answer = reply.json()
        score: float = answer["score"]
        left.append(answer["tries"]["left"])
        assert score in (0, 0.5, 1)
        # The best guess from a score that is rounded down.
        return round(3 * score)

    found, asked = hunt(count)
    assert not found & HIDDEN
    assert asked <= BUDGET
    assert left == [*range(BUDGET, BUDGET - asked - 1, -1)]


def award(either: Deployment, operator: str, **terms: Any) -> str:
    """Award the agent a contract that is judged by the hidden words."""
    work = {
        "title": "Find the words",
        "success_criteria": KEYWORDS,
        "terms": {"cpc_rate": "1", "settle": "on_request", **terms},
    }
    made = either.ask("POST", "/v1/work", key=operator, json=work)
    assert made.status_code == 201, made.text
    wish = {"work_id": made.json()["id"], "agent_id": "robot"}
    return str(either.ask("POST", "/v1/contracts", key=operator, json=wish).json()["id"])


def test_the_terms_of_an_open_contract_set_the_budget(either: Deployment, tenant: str, operator: str) -> None:
    agent, words = either.key(Role.AGENT, tenant), sorted(HIDDEN)
    assert submit(either, agent, words[:2]).json()["tries"] == {
        "used": 1,
        "left": BUDGET - 1,
        "budget": BUDGET,
        "contract_id": None,
    }
    contract = award(either, operator, agent_tries=2, agent_score="verdict")
    first, second, third = (submit(either, agent, words[:2]) for _ in range(3))
    assert (first.json()["tries"]["left"], second.json()["tries"]["left"]) == (1, 0)
    assert (first.json()["tries"]["contract_id"], first.json()["score"]) == (contract, None)
    assert (third.status_code, code_of(third)) == (403, "no_tries_left")
    # A list of outcomes shows no more than the replies did.
    listed = either.ask("GET", "/v1/outcomes", key=agent).json()["outcomes"]
    assert [one["score"] for one in listed] == [None, None, None]
    assert {one["by_agent"] for one in either.ask("GET", "/v1/outcomes", key=operator).json()["outcomes"]} == {True}


def test_the_score_of_a_contract_is_exact_once_it_is_paid(either: Deployment, tenant: str, operator: str) -> None:
    agent, output = either.key(Role.AGENT, tenant), {"text": " ".join(sorted(HIDDEN)[:2])}
    for shown, before in (("coarse", 0.5), ("verdict", None), ("exact", pytest.approx(2 / 3))):
        contract = award(either, operator, agent_score=shown)
        path = f"/v1/contracts/{contract}"
        done = either.ask("POST", f"{path}/complete", key=agent, json={"output": output}).json()
        outcome = f"/v1/outcomes/{done['outcome_id']}"
        assert done["score"] == either.ask("GET", outcome, key=agent).json()["score"] == before
        assert either.ask("POST", f"{path}/settle", key=operator).status_code == 200
        assert either.ask("GET", path, key=agent).json()["score"] == pytest.approx(2 / 3)
        assert either.ask("GET", outcome, key=agent).json()["score"] == pytest.approx(2 / 3)


@pytest.mark.usefixtures("operator")
def test_a_batch_counts_each_item_and_is_refused_as_a_whole(either: Deployment, tenant: str) -> None:
    agent = either.key(Role.AGENT, tenant)

    def send(count: int) -> Any:
        items = [{"output": {"text": "nothing to see"}}] * count
        return either.ask("POST", "/v1/verify/batch", key=agent, json={"criteria": "job", "items": items})

    assert send(BUDGET - 1).json()["tries"]["left"] == 1
    before = either.rows()["outcomes"]
    assert (send(2).status_code, either.rows()["outcomes"]) == (403, before)
    # The same request again is one try.
    body, once = {"criteria": "job", "output": {"text": "again"}}, {"Idempotency-Key": "once"}
    replies = [either.ask("POST", "/v1/verify", key=agent, json=body, headers=once) for _ in range(2)]
    assert [one.json()["tries"]["left"] for one in replies] == [0, 0]
    assert send(1).status_code == 403


@pytest.mark.usefixtures("operator")
def test_another_agent_has_a_budget_of_its_own(either: Deployment, tenant: str) -> None:
    one, same, other = (either.key(Role.AGENT, tenant, agent_id=name) for name in ("one", "one", "other"))
    left = [submit(either, key, ["word"]).json()["tries"]["left"] for key in (one, same, other)]
    assert left == [BUDGET - 1, BUDGET - 2, BUDGET - 1]


def test_many_nearly_equal_tries_are_flagged_as_probing(either: Deployment, tenant: str, operator: str) -> None:
    agent, ids = either.key(Role.AGENT, tenant), list[str]()
    for number in range(8):
        words = ["the", "same", "answer", "with", VOCABULARY[number]]
        # Another input each time does not hide the search.
        ids.append(submit(either, agent, words, input={"question": number}).json()["outcome_id"])
    found = [either.ask("GET", f"/v1/outcomes/{one}", key=operator).json()["verification_result"] for one in ids]
    flags = [one["governance_flags"] for one in found]
    assert ["probing" in one for one in flags] == [False] * 6 + [True] * 2
    # The contract that the search was for shows it too.
    contract = award(either, operator)
    output = {"text": f"the same answer with {' '.join(sorted(HIDDEN))}"}
    either.ask("POST", f"/v1/contracts/{contract}/complete", key=agent, json={"output": output})
    judged = either.ask("GET", f"/v1/contracts/{contract}", key=operator).json()["outcome"]
    assert (judged["governance_flags"], judged["success"]) == (["probing"], True)
