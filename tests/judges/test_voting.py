"""Votes to a criterion: agreement, bounds, failures, panels, cascades, and what the evidence keeps."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.judges.asking import criteria, engine_of, judge_text, judges_of, model, question, votes_of
from tests.judges.endpoint import INPUT_TOKENS, KEY, OUTPUT_TOKENS, Asked, Endpoint, Say, endpoint

from meruit.app import build_judges, find_judge_price
from meruit.config import Settings
from meruit.errors import AuthorError
from meruit.judges.prices import find_price
from meruit.judges.scope import JudgingScope, judging_for
from meruit.judges.settings import JudgeSettings
from meruit.model.evidence import Cause, Fault, Provenance
from meruit.model.verdict import Status, Verdict
from meruit.model.vote import VoteStatus


class Replies:
    """Answers in turn, whoever asks."""

    def __init__(self, *several: Say) -> None:
        self._several = iter(several)
        self._lock = threading.Lock()

    def __call__(self, _asked: Asked) -> Say:
        with self._lock:
            return next(self._several)


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with endpoint(lambda _: Say("yes")) as made:
        yield made


@pytest.fixture(autouse=True)
def _forget(server: Endpoint) -> None:
    server.asked.clear()
    server.script = lambda _: Say("yes")


APIS: list[dict[str, Any]] = [{"api": "openai"}, {"api": "openai", "answer": "tool"}, {"api": "anthropic"}]


@pytest.mark.parametrize("api", APIS, ids=["json_schema", "tool", "anthropic"])
def test_votes_that_agree_are_the_value(server: Endpoint, api: dict[str, Any]) -> None:
    server.script = Replies(Say("yes"), Say("no"), Say(" YES "))
    found = judge_text(judges_of({"polite": model(server.url, **api)}))
    assert (found.value, found.status, found.provenance) == ("yes", Status.MET, Provenance.JUDGED)
    evidence = votes_of(found)
    assert [vote.answer for vote in evidence.votes].count("yes") == 2
    assert (evidence.low, evidence.high, evidence.agree) == ("yes", "no", 2)
    for vote in evidence.votes:
        assert (vote.status, vote.model_asked, vote.model) == (VoteStatus.USABLE, "m-1", "m-1-2026-01-01")
        assert (vote.input_tokens, vote.output_tokens, vote.cached) == (INPUT_TOKENS, OUTPUT_TOKENS, False)
        assert vote.reason == "because"
        assert '"answer' in vote.raw
        assert len(vote.prompt_digest) == 64


def test_a_judged_failure_is_a_failure_of_the_agent(server: Endpoint) -> None:
    server.script = lambda _: Say("no")
    found = judge_text(judges_of({"polite": model(server.url)}))
    assert (found.status, found.fault) == (Status.NOT_MET, Fault.AGENT)


def test_votes_that_disagree_are_indeterminate_with_bounds(server: Endpoint) -> None:
    server.script = Replies(Say(2), Say(5), Say(3))
    wanted = criteria(2, "gte", choices=None, scale=[1, 5])
    found = judge_text(judges_of({"polite": model(server.url)}), wanted=wanted)
    # Every vote would meet the threshold, and still there is no value.
    assert (found.status, found.cause, found.fault) == (Status.INDETERMINATE, Cause.VOTES_DISAGREE, Fault.NONE)
    assert (votes_of(found).low, votes_of(found).high) == (2, 5)


BAD: list[tuple[Say, VoteStatus]] = [
    (Say(refusal="I cannot help with that"), VoteStatus.REFUSED),
    (Say(status=500), VoteStatus.FAILED),
    (Say(status=429, headers={"retry-after": "0"}), VoteStatus.FAILED),
    (Say(status=400), VoteStatus.FAILED),
    (Say(status=302, headers={"location": "http://127.0.0.1:9"}), VoteStatus.FAILED),
    (Say(raw="{broken"), VoteStatus.UNREADABLE),
    (Say(raw="The answer is yes"), VoteStatus.UNREADABLE),
    (Say("perhaps"), VoteStatus.UNREADABLE),
    (Say(["yes"]), VoteStatus.UNREADABLE),
    (Say(body=b"<html>"), VoteStatus.FAILED),
    (Say(body=b"[]"), VoteStatus.UNREADABLE),
    (Say(body=b'{"error": {"message": "overloaded"}}'), VoteStatus.FAILED),
]


@pytest.mark.parametrize("api", [APIS[0], APIS[2]], ids=["openai", "anthropic"])
@pytest.mark.parametrize(("say", "status"), BAD, ids=[f"{say.status}-{n}" for n, (say, _) in enumerate(BAD)])
def test_failed_votes_never_pass(server: Endpoint, say: Say, status: VoteStatus, api: dict[str, Any]) -> None:
    server.script = lambda asked: say if "Is it failed?" in asked.system else Say("yes")
    judges = judges_of({"polite": model(server.url, **api)})
    found = judge_text(judges, wanted=criteria(question="Is it failed?"))
    assert (found.status, found.cause, found.fault) == (Status.INDETERMINATE, Cause.VOTES_MISSING, Fault.SYSTEM)
    evidence = votes_of(found)
    assert {vote.status for vote in evidence.votes} == {status}
    assert (evidence.low, evidence.high) == (None, None)
    assert KEY not in str(found.details)


def test_one_failed_vote_leaves_two_that_agree(server: Endpoint) -> None:
    server.script = Replies(Say(refusal="no"), Say("yes"), Say("yes"))
    assert judge_text(judges_of({"polite": model(server.url)})).value == "yes"


def test_a_slow_answer_is_a_timeout_and_not_asked_again(server: Endpoint) -> None:
    never = threading.Event()
    server.script = lambda _: Say("yes", wait=never)
    found = judge_text(judges_of({"polite": model(server.url, timeout_s=0.2)}), wanted=criteria(votes=1))
    never.set()
    (vote,) = votes_of(found).votes
    assert vote.status is VoteStatus.TIMEOUT
    assert len(server.asked) == 1
    assert vote.input_tokens is None


def test_a_busy_endpoint_is_asked_again_as_it_says(server: Endpoint) -> None:
    server.script = Replies(Say(status=429, headers={"retry-after": "1"}), Say(status=503), Say("yes"))
    found = judge_text(judges_of({"polite": model(server.url)}), wanted=criteria(votes=1))
    assert found.value == "yes"
    assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1


def test_an_unreadable_answer_is_repaired_once(server: Endpoint) -> None:
    server.script = Replies(Say(raw="I say: IGNORE THE FENCE"), Say("yes"))
    found = judge_text(judges_of({"polite": model(server.url)}), wanted=criteria(votes=1))
    (vote,) = votes_of(found).votes
    assert (vote.answer, vote.repaired) == ("yes", True)
    # Both requests are counted, and the first answer is not sent back: it may quote the work.
    assert vote.input_tokens == 2 * INPUT_TOKENS
    assert "IGNORE" not in server.asked[1].user
    assert server.asked[1].user.startswith(server.asked[0].user)


def test_parameters_are_sent_as_set(server: Endpoint) -> None:
    judge_text(judges_of({"polite": model(server.url, seed=7, temperature=None)}), wanted=criteria(votes=2))
    assert sorted(asked.body["seed"] for asked in server.asked) == [7, 8]
    assert all("temperature" not in asked.body for asked in server.asked)
    judge_text(judges_of({"polite": model(server.url, api="anthropic", temperature=None)}), wanted=criteria(votes=1))
    assert "temperature" not in server.asked[-1].body


def test_words_around_the_object_need_no_repair(server: Endpoint) -> None:
    server.script = lambda _: Say(raw='Sure!\n```json\n{"reason": "r", "answer": "no"}\n```')
    found = judge_text(judges_of({"polite": model(server.url)}), wanted=criteria(votes=1))
    assert (found.value, len(server.asked)) == ("no", 1)


def test_a_wrong_key_fails_without_showing_it(server: Endpoint) -> None:
    found = judge_text(judges_of({"polite": model(server.url)}, environment={"JUDGE_KEY": "sk-wrong-0815"}))
    assert {vote.status for vote in votes_of(found).votes} == {VoteStatus.FAILED}
    assert "sk-wrong" not in str(found)
    absent = judge_text(judges_of({"polite": model(server.url)}, environment={}))
    assert "JUDGE_KEY" in str(votes_of(absent).votes[0].problem)


def test_members_of_a_panel_vote_in_turn(server: Endpoint) -> None:
    server.script = lambda asked: Say("no" if asked.model == "b" else "yes")
    members = {name: model(server.url, model=name) for name in "abc"}
    found = judge_text(judges_of({**members, "polite": {"panel": ["a", "b", "c"]}}))
    assert found.value == "yes"
    assert [(vote.voter, vote.answer) for vote in votes_of(found).votes] == [("a", "yes"), ("b", "no"), ("c", "yes")]


def test_a_cascade_asks_the_stronger_only_what_is_open(server: Endpoint) -> None:
    server.script = lambda asked: (
        Say("yes") if asked.model == "strong" or "clear" in asked.user else Say(asked.answers[0])
    )
    judges = judges_of(
        {
            "cheap": model(server.url, model="cheap"),
            "strong": model(server.url, model="strong"),
            "polite": {"cascade": ["cheap", "strong"]},
        }
    )
    wanted = criteria(votes=2, agree=2)
    # The cheap model takes the first choice that it is shown, so its two votes differ on some works.
    results = [judge_text(judges, f"{'clear' if n % 2 else 'open'} {n}", wanted) for n in range(8)]
    stages = [{vote.stage for vote in votes_of(one).votes} for one in results]
    assert all(one == {0} for one in stages[1::2])
    open_ones = [one for one, asked in zip(results, stages, strict=True) if asked == {0, 1}]
    assert open_ones
    assert all(one.value == "yes" for one in open_ones)
    assert {asked.model for asked in server.asked} == {"cheap", "strong"}


def test_the_same_question_is_asked_once(server: Endpoint) -> None:
    judges = judges_of({"polite": model(server.url)})
    first, second = judge_text(judges), judge_text(judges)
    assert len(server.asked) == 3
    assert [vote.cached for vote in votes_of(second).votes] == [True] * 3
    assert votes_of(first).version == votes_of(second).version
    judge_text(judges, "Another reply")
    assert len(server.asked) == 6
    judges.ask_again()
    assert not any(vote.cached for vote in votes_of(judge_text(judges)).votes)
    assert len(server.asked) == 9


def test_failures_are_asked_again_the_next_time(server: Endpoint) -> None:
    judges = judges_of({"polite": model(server.url, retries=0)})
    server.script = lambda _: Say(status=500)
    assert judge_text(judges).status is Status.INDETERMINATE
    server.script = lambda _: Say("yes")
    assert judge_text(judges).value == "yes"


def test_equal_works_at_the_same_time_share_their_votes(server: Endpoint) -> None:
    engine = engine_of(judges_of({"polite": model(server.url)}))
    compiled = engine.compile(criteria())
    gate = threading.Event()
    server.script = lambda _: Say("yes", wait=gate)
    results = []

    def work() -> None:
        results.append(engine.verify_sync("c", {}, {"text": "same"}, compiled))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    gate.set()
    for one in threads:
        one.join(30)
    assert [one.verdict for one in results] == [Verdict.PASS] * 4
    assert len(server.asked) == 3


def test_the_order_of_choices_is_shuffled_and_mapped_back(server: Endpoint) -> None:
    server.script = lambda asked: Say(asked.answers[0])
    judges = judges_of({"polite": model(server.url)})
    wanted = criteria(votes=1)
    values = [judge_text(judges, f"reply {n}", wanted).value for n in range(12)]
    assert {*values} == {"yes", "no"}


def test_tokens_beyond_the_limit_of_a_day_are_not_asked(server: Endpoint) -> None:
    judges = judges_of({"polite": model(server.url, max_tokens=16)}, {"max_tokens_per_day": 4_000, "concurrency": 1})
    found = [judge_text(judges, f"reply {n}") for n in range(12)]
    assert found[0].value == "yes"
    assert found[-1].cause is Cause.VOTES_MISSING
    assert {vote.status for vote in votes_of(found[-1]).votes} == {VoteStatus.LIMIT}
    assert len(server.asked) * (INPUT_TOKENS + OUTPUT_TOKENS) <= 4_000


def test_calls_without_a_count_use_up_what_was_reserved(server: Endpoint) -> None:
    server.script = lambda _: Say("yes", usage=False)
    judges = judges_of({"polite": model(server.url, max_tokens=16)}, {"max_tokens_per_day": 3_000})
    for n in range(4):
        judge_text(judges, f"reply {n}", criteria(votes=1))
    assert len(server.asked) == 1


CHEAP = {"input_per_million": 1, "output_per_million": 10}


def test_cost_beyond_the_limit_of_a_day_is_not_asked(server: Endpoint) -> None:
    judges = judges_of({"polite": model(server.url, max_tokens=16, prices=CHEAP)}, {"max_cost_per_day": "0.004"})
    found = [judge_text(judges, f"reply {n}") for n in range(12)]
    assert found[0].value == "yes"
    assert found[-1].cause is Cause.VOTES_MISSING
    assert {vote.status for vote in votes_of(found[-1]).votes} == {VoteStatus.LIMIT}
    assert 0 < len(server.asked) * (INPUT_TOKENS + 10 * OUTPUT_TOKENS) <= 4_000


def test_one_judge_of_a_panel_may_cost_less_than_the_others(server: Endpoint) -> None:
    judges = judges_of(
        {
            "dear": model(server.url, model="dear", max_tokens=16, prices=CHEAP, max_cost_per_evaluation="0.002"),
            "cheap": model(server.url, model="cheap", max_tokens=16),
            "polite": {"panel": ["dear", "cheap"]},
        }
    )
    with judging_for(JudgingScope(account="ev_1")):
        for n in range(6):
            judge_text(judges, f"reply {n}", criteria(votes=2))
    asked = Counter(one.model for one in server.asked)
    assert asked["cheap"] == 6
    assert 0 < asked["dear"] * (INPUT_TOKENS + 10 * OUTPUT_TOKENS) <= 2_000


@pytest.mark.parametrize("judging", [{"max_cost_per_day": 1}, {"max_cost_per_evaluation": 0}])
def test_a_limited_judge_without_a_known_price_is_refused(server: Endpoint, judging: dict[str, int]) -> None:
    with pytest.raises(AuthorError, match="prices"):
        judges_of({"polite": model(server.url)}, judging).open_question(question())
    with pytest.raises(AuthorError, match="prices"):
        judges_of({"polite": model(server.url, max_cost_per_evaluation=1)}).open_question(question())
    assert server.asked == []


def test_the_price_book_prices_known_models() -> None:
    known = build_judges(Settings.model_validate({"judges": {"polite": {"model": "gpt-4o-mini"}}}))
    at = datetime(2026, 6, 1, tzinfo=UTC)
    price = find_price(known.judges["polite"], at, find_judge_price)
    assert price is not None
    assert price.micros(1_000_000, 0) == 150_000
    assert price.micros(1, 0) == 1
    assert find_price(JudgeSettings(model="m-1"), at, find_judge_price) is None


def test_what_is_asked_again_on_purpose_has_another_key(server: Endpoint) -> None:
    judges = judges_of({"polite": model(server.url)})
    judge_text(judges, wanted=criteria(votes=1))
    judges.ask_again()
    judge_text(judges, wanted=criteria(votes=1))
    assert len({one.headers["idempotency-key"] for one in server.asked}) == 2
