"""Agents compared by preference: both orders are asked, and a judge that looks at places alone decides nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.judges.asking import judges_of, model
from tests.judges.endpoint import KEY, KEY_VARIABLE, Asked, Endpoint, Say, endpoint

from meruit.cli import main
from meruit.errors import AuthorError, MeruitError
from meruit.evaluations.evaluation import Case, EvaluationRecord
from meruit.evaluations.pairwise import compare_pairwise, judging_scope
from meruit.evaluations.reader import Evaluations, erase_case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.judges.prefer import PairJudge, PairQuestion, Preferred
from meruit.judges.records import StoredVotes, read_totals
from meruit.judges.scope import JudgingScope
from meruit.outcomes.service import Registrar
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

CRITERIA = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}
CASES = 12


def longer(asked: Asked) -> Say:
    """Prefer the longer output, wherever it stands."""
    first, second = (len(asked.part(f"{name} output")) for name in ("first", "second"))
    return Say("neither" if first == second else "the first" if first > second else "the second")


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with endpoint(longer) as made:
        yield made


@pytest.fixture(autouse=True)
def _forget(server: Endpoint) -> None:
    server.asked.clear()
    server.script = longer


def evaluate(store: Store, tenant: str, name: str, lengths: list[int]) -> EvaluationRecord:
    evaluator = Evaluator(Registrar(VerificationEngine(), store), tenant)
    compiled = evaluator.compile(CRITERIA)
    cases = [
        Case(f"c{n}", {"text": "q", "reference": "GOLD"}, {"text": f"{n} " + "x" * length})
        for n, length in enumerate(lengths)
    ]
    started = evaluator.start(name, compiled)
    return run_cases(evaluator, started, compiled, cases) if cases else started


def pair_judge(store: Store, server: Endpoint, **settings: Any) -> PairJudge:
    judges = judges_of({"better": model(server.url, **settings)})
    judges.keep_votes(StoredVotes(store))
    return PairJudge(judges, PairQuestion("better"))


def test_the_preferred_agent_is_found(shared: Store, server: Endpoint, tenant: str) -> None:
    evaluations = [
        evaluate(shared, tenant, "old", [5] * CASES),
        evaluate(shared, tenant, "new", [9, 9, 9, 9, 9, 9, 9, 9, 1, 1, 5, 5]),
    ]
    reader = Evaluations(shared, tenant)
    judge = pair_judge(shared, server)
    found = compare_pairwise(reader, evaluations, judge, JudgingScope(tenant, "pairs"))
    new = found.model.agents[1]
    assert (new.wins, new.losses, new.ties, found.open) == (8, 2, 2, 0)
    assert new.preferred == pytest.approx(9 / 12)
    assert new.interval is not None
    # Equal outputs are not asked about.
    asked = 2 * (CASES - 2)
    assert len(server.asked) == asked
    assert all("GOLD" not in asked.user for asked in server.asked)
    again = compare_pairwise(reader, evaluations, judge, JudgingScope(tenant, "pairs"))
    assert (again, len(server.asked)) == (found, asked)
    # What was said of a pair goes with either of its outputs, in both orders.
    erase_case(shared, tenant, reader.case(evaluations[1], "c0").summary.outcome_id, "asked for")
    assert reader.case(evaluations[0], "c0").output is not None
    with shared.database.reading() as connection:
        kept = connection.exec_driver_sql("SELECT count(*) FROM judge_votes WHERE tenant = ?", (tenant,)).scalar()
    assert kept == asked - 2


def test_a_judge_that_likes_the_first_place_finds_ties(shared: Store, server: Endpoint, tenant: str) -> None:
    server.script = lambda _: Say("the first")
    evaluations = [evaluate(shared, tenant, "a", [1] * CASES), evaluate(shared, tenant, "b", [9] * CASES)]
    found = compare_pairwise(
        Evaluations(shared, tenant), evaluations, pair_judge(shared, server), JudgingScope(tenant, "pairs")
    )
    assert {one.preferred for one in found.pairs} == {Preferred.TIE}
    assert found.model.agents[1].preferred == 0.5


def test_pairs_without_an_answer_stay_open(shared: Store, server: Endpoint, tenant: str) -> None:
    server.script = lambda asked: Say(status=400) if "0 x" in asked.part("first output") else longer(asked)
    evaluations = [evaluate(shared, tenant, "a", [1, 2]), evaluate(shared, tenant, "b", [3, 1])]
    found = compare_pairwise(
        Evaluations(shared, tenant), evaluations, pair_judge(shared, server), JudgingScope(tenant, "pairs")
    )
    assert [one.preferred for one in found.pairs] == [Preferred.OPEN, Preferred.FIRST]
    assert found.open == 1
    assert found.model.why_not


def test_a_limit_of_cost_is_kept(shared: Store, server: Endpoint, tenant: str) -> None:
    evaluations = [evaluate(shared, tenant, "a", [1] * CASES), evaluate(shared, tenant, "b", [9] * CASES)]
    prices = {"input_per_million": 1, "output_per_million": 1}
    judges = judges_of({"better": model(server.url, max_tokens=16, prices=prices), "free": model(server.url)})
    judges.keep_votes(StoredVotes(shared))
    question = PairQuestion("better", max_cost=0.004)
    scope = judging_scope(tenant, evaluations[0], question)
    found = compare_pairwise(Evaluations(shared, tenant), evaluations, PairJudge(judges, question), scope)
    assert 0 < found.open < CASES
    with shared.database.reading() as connection:
        (total,) = read_totals(connection, tenant, scope.account)
    assert 0 < total.cost_micros + total.unknown_micros <= 4_000
    # Without a price, the limit would not hold.
    with pytest.raises(AuthorError):
        PairJudge(judges, PairQuestion("free", max_cost=1))


def test_what_cannot_be_compared_is_refused(shared: Store, server: Endpoint, tenant: str) -> None:
    with pytest.raises(AuthorError):
        PairJudge(judges_of({}), PairQuestion("better"))
    one, other = evaluate(shared, tenant, "a", [1]), evaluate(shared, tenant, "none", [])
    with pytest.raises(MeruitError):
        compare_pairwise(
            Evaluations(shared, tenant), [one, other], pair_judge(shared, server), JudgingScope(tenant, "pairs")
        )


def test_the_command_shows_preferences(
    tmp_path: Path, server: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_bytes(msgspec.json.encode({"judges": {"better": model(server.url)}}))
    (tmp_path / "criteria.json").write_bytes(msgspec.json.encode(CRITERIA))

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--data", "data"])
        return int(left.value.code or 0), capsys.readouterr().out

    for name, lengths in (("old", [5] * CASES), ("new", [9] * 8 + [1] * 4)):
        rows = (f'{{"id": "c{n}", "output": {{"text": "{n} {"x" * length}"}}}}\n' for n, length in enumerate(lengths))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
        assert run("eval", "run", "criteria.json", f"{name}.jsonl", "--name", name)[0] == 0
    pairwise = ("eval", "compare", "old", "new", "--pairwise", "better", "--config", "settings.json")
    code, shown = run(*pairwise)
    assert code == 0
    assert "66.7%" in shown
    code, shown = run(*pairwise, "--json")
    assert msgspec.json.decode(shown)["pairwise"]["model"]["agents"][1]["wins"] == 8
    assert run("eval", "compare", "old", "new", "--question", "Which?")[0] == 2
    assert run("eval", "compare", "old", "new", "--pairwise", "bettr", "--config", "settings.json")[0] == 2
