"""Judged criteria where records are kept: asked once, proven, erased, metered, and hidden from agents."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api.conftest import Deployment
from tests.judges.asking import criteria, judges_of, model
from tests.judges.endpoint import INPUT_TOKENS, KEY, KEY_VARIABLE, OUTPUT_TOKENS, Asked, Endpoint, Say, endpoint

from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.cli import main
from meruit.evaluations.evaluation import Case
from meruit.evaluations.reader import CaseFilter, Evaluations, erase_case
from meruit.evaluations.run import RunLimits, run_cases
from meruit.evaluations.service import Evaluator
from meruit.judges import judged_criteria
from meruit.judges.records import StoredVotes, read_totals
from meruit.judges.service import ModelJudges
from meruit.judges.vote_records import MAX_SENDS, CallCost, CallLimits, JudgeCall, Reservation
from meruit.model.access import Role, Scope
from meruit.model.vote import JUDGE, VoteStatus
from meruit.outcomes.records import erase
from meruit.outcomes.rescore.run import RescoreTask
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.usage.records import find as find_usage
from meruit.verify.engine import VerificationEngine

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PER_VOTE = INPUT_TOKENS + OUTPUT_TOKENS
CASES = [Case(f"c{n}", {"text": "hello"}, {"text": f"{'Thank you' if n % 2 else 'No'} {n}"}) for n in range(6)]


def sees_thanks(asked: Asked) -> Say:
    return Say("yes" if "Thank you" in asked.part("output") else "no", reason="WHY-SECRET")


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with endpoint(sees_thanks) as made:
        yield made


@pytest.fixture(autouse=True)
def _forget(server: Endpoint) -> None:
    server.asked.clear()


def engine_with(judges: ModelJudges) -> VerificationEngine:
    return VerificationEngine(services={JUDGE: judges})


def evaluator_of(store: Store, server: Endpoint, tenant: str, **settings: Any) -> Evaluator:
    judges = judges_of({"polite": model(server.url, **settings)})
    return Evaluator(Registrar(engine_with(judges), store), tenant)


def test_an_evaluation_asks_each_question_once(store: Store, server: Endpoint, tenant: str) -> None:
    for name in ("first", "second"):
        # Each with an engine of its own, as after another start.
        evaluator = evaluator_of(store, server, tenant)
        compiled = evaluator.compile(criteria())
        run_cases(evaluator, evaluator.start(name, compiled), compiled, CASES)
        assert len(server.asked) == 3 * len(CASES)
    reader = Evaluations(store, tenant)
    assert reader.summary(reader.find("second")).overall.passed == 3
    (total,) = reader.judge_tokens(reader.find("first"))
    assert (total.calls, total.unknown_calls) == (18, 0)
    assert total.input_tokens + total.output_tokens == 18 * PER_VOTE
    assert reader.judge_tokens(reader.find("second")) == []
    detail = reader.case(reader.find("second"), "c1")
    assert detail.result is not None
    (judged,) = judged_criteria(detail.result)
    assert all(vote.cached for vote in judged.evidence.votes)
    assert judged.result.value == "yes"


def test_votes_of_one_tenant_are_not_seen_by_another(shared: Store, server: Endpoint) -> None:
    for tenant in ("one", "two"):
        registrar = Registrar(engine_with(judges_of({"polite": model(server.url)})), shared)
        registrar.judge_sync(registrar.compile(criteria()), Submission({}, {"text": "Thank you"}, {}), tenant)
    assert len(server.asked) == 6


def test_a_limit_ends_the_asking_and_not_the_evaluation(store: Store, server: Endpoint, tenant: str) -> None:
    evaluator = evaluator_of(store, server, tenant, max_tokens=16)
    compiled = evaluator.compile(criteria(votes=1))
    limits = RunLimits(judge_tokens=2_200, concurrency=4)
    started = evaluator.start("limited", compiled)
    run_cases(evaluator, started, compiled, CASES, limits=limits.judges)
    assert 0 < len(server.asked) < len(CASES)
    assert len(server.asked) * PER_VOTE <= 2_200
    reader = Evaluations(store, tenant)
    found = reader.find("limited")
    assert reader.summary(found).overall.open == len(CASES) - len(server.asked)
    results = [one.result for one in reader.details(found, CaseFilter()) if one.result is not None]
    statuses = {vote.status for one in results for judged in judged_criteria(one) for vote in judged.evidence.votes}
    assert statuses == {VoteStatus.USABLE, VoteStatus.LIMIT}


def test_judges_are_metered_as_runs_of_their_account(shared: Store, server: Endpoint, tenant: str) -> None:
    evaluator = evaluator_of(shared, server, tenant, account="judges", attribution_key="key:key_judges")
    compiled = evaluator.compile(criteria(votes=1))
    started = evaluator.start("metered", compiled)
    run_cases(evaluator, started, compiled, CASES)
    with shared.database.reading() as connection:
        run = find_usage(connection, tenant, f"{started.id}.polite").run
    assert (run.framework, run.source, run.task) == ("judge", "judges", "metered")
    assert run.local is not None
    assert (run.local.input, run.local.output) == (6 * INPUT_TOKENS, 6 * OUTPUT_TOKENS)


def test_the_audit_counts_votes_again(shared: Store, server: Endpoint, tenant: str) -> None:
    registrar = Registrar(engine_with(judges_of({"polite": model(server.url)})), shared)
    judged = registrar.judge_sync(
        registrar.compile(criteria()), Submission({"text": "hi"}, {"text": "Thank you"}, {}), tenant
    )
    outcome = registrar.record_sync(tenant, judged).outcome_id
    bundle = export(shared, Scope(tenant), outcome)
    found = verify_bundle(bundle)
    assert found.failed is None
    assert any(note.startswith("testimony") for note in found.notes)
    assert len(server.asked) == 3


def test_a_result_that_its_votes_deny_is_found(shared: Store, server: Endpoint, tenant: str) -> None:
    from meruit.audit.verify import outcome as auditing
    from meruit.errors import BundleFlaw

    registrar = Registrar(engine_with(judges_of({"polite": model(server.url)})), shared)
    judged = registrar.judge_sync(registrar.compile(criteria()), Submission({}, {"text": "No"}, {}), tenant)
    (honest,) = judged.result.criterion_results
    assert "3 votes" in auditing._recount_votes("version 1", honest)
    for forged in (
        msgspec.structs.replace(honest, value="yes"),
        msgspec.structs.replace(honest, details=None),
    ):
        with pytest.raises(BundleFlaw):
            auditing._recount_votes("version 1", forged)


def test_erasing_an_outcome_erases_what_judges_said(store: Store, server: Endpoint, tenant: str) -> None:
    registrar = Registrar(engine_with(judges_of({"polite": model(server.url)})), store)
    compiled = registrar.compile(criteria())
    work = Submission({}, {"text": "Thank you"}, {})
    outcome = registrar.record_sync(tenant, registrar.judge_sync(compiled, work, tenant)).outcome_id
    erase(store, tenant, outcome, "asked for")
    registrar.judge_sync(compiled, work, tenant)
    assert len(server.asked) == 6
    evaluator = evaluator_of(store, server, tenant)
    started = evaluator.start("erased", compiled := evaluator.compile(criteria()))
    run_cases(evaluator, started, compiled, CASES[:1])
    asked = len(server.asked)
    reader = Evaluations(store, tenant)
    erase_case(store, tenant, reader.case(reader.find("erased"), "c0").summary.outcome_id, "asked for")
    evaluator.judge(compiled, CASES[0])
    assert len(server.asked) == asked + 3


def test_an_agent_sees_neither_votes_nor_reasons(tmp_path: Path, server: Endpoint) -> None:
    engine = engine_with(judges_of({"polite": model(server.url)}))
    deployment = Deployment(Location(tmp_path), engine)
    operator, agent = deployment.key(Role.OPERATOR, "acme"), deployment.key(Role.AGENT, "acme")
    named = deployment.ask("POST", "/v1/criteria", key=operator, json={"name": "polite", "criteria": criteria()})
    assert named.status_code in (200, 201), named.text
    body = {"output": {"text": "Thank you"}, "criteria": "polite"}
    seen = deployment.ask("POST", "/v1/verify", key=agent, json=body)
    assert (seen.status_code, seen.json()["verdict"]) == (200, "pass")
    assert "WHY-SECRET" not in seen.text
    mine = deployment.ask("GET", f"/v1/outcomes/{seen.json()['outcome_id']}", key=agent)
    assert "WHY-SECRET" not in mine.text
    assert "polite?" not in mine.text
    full = deployment.ask("POST", "/v1/verify", key=operator, json=body).json()["result"]
    assert full["criterion_results"][0]["details"]["judge"]["votes"][0]["reason"] == "WHY-SECRET"
    assert len(server.asked) == 3
    unknown = criteria(judge="polight")
    refused = deployment.ask("POST", "/v1/verify", key=operator, json={**body, "criteria": unknown})
    assert refused.status_code in (400, 422)
    assert "polite" in refused.text


def test_rescoring_reuses_the_votes(shared: Store, server: Endpoint) -> None:
    engine = engine_with(judges_of({"polite": model(server.url)}))
    compiled = engine.compile(criteria())
    from meruit.outcomes.rescore.reuse import EvidenceSources

    result = engine.verify_sync("c", {}, {"text": "Thank you"}, compiled)
    stricter = RescoreTask(engine, engine.compile(criteria("no", "neq")).plan.criteria, result.verified_at)
    assert EvidenceSources(stricter.compiled, compiled).of(result) == (0,)


def test_the_stored_vote_is_read_back_whole(shared: Store, server: Endpoint, tenant: str) -> None:
    registrar = Registrar(engine_with(judges_of({"polite": model(server.url)})), shared)
    judged = registrar.judge_sync(registrar.compile(criteria(votes=1)), Submission({}, {"text": "No"}, {}), tenant)
    (one,) = judged_criteria(judged.result)
    (vote,) = one.evidence.votes
    assert StoredVotes(shared)._find(tenant, vote.key) == vote


def test_the_commands_judge_and_meter(
    tmp_path: Path, server: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_bytes(msgspec.json.encode({"judges": {"polite": model(server.url)}}))
    (tmp_path / "criteria.json").write_bytes(msgspec.json.encode(criteria()))
    (tmp_path / "out.json").write_text('{"text": "Thank you"}')
    rows = "".join(f'{{"id": "c{n}", "output": {{"text": "Thank you {n}"}}}}\n' for n in range(3))
    (tmp_path / "cases.jsonl").write_text(rows)
    common = ["--config", "settings.json", "--data", "data", "--json"]

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, *common])
        return int(left.value.code or 0), msgspec.json.decode(capsys.readouterr().out)

    code, result = run("verify", "criteria.json", "--output", "out.json", "--record")
    assert (code, result["verdict"]) == (0, "pass")
    run("verify", "criteria.json", "--output", "out.json", "--record")
    assert len(server.asked) == 3
    run("verify", "criteria.json", "--output", "out.json", "--record", "--fresh")
    assert len(server.asked) == 6
    code, shown = run("eval", "run", "criteria.json", "cases.jsonl", "--name", "e")
    assert (code, shown["judge_tokens"][0]["calls"]) == (0, 9)
    everything = b"".join(one.read_bytes() for one in (tmp_path / "data").rglob("*") if one.is_file())
    assert KEY.encode() not in everything


def test_a_question_that_every_process_died_of_is_not_sent_for_ever(
    shared: Store, server: Endpoint, tenant: str
) -> None:
    votes, call = StoredVotes(shared), JudgeCall(tenant, "ev", "polite", "m-1", "", "", 10, NOW, key="k")

    async def send(times: int, *, fresh: bool = False) -> list[Reservation]:
        again = msgspec.structs.replace(call, fresh=fresh)
        return [await votes.reserve(again, CallLimits(account_tokens=1_000)) for _ in range(times)]

    found = asyncio.run(send(MAX_SENDS + 1))
    assert found == [Reservation.GRANTED] * MAX_SENDS + [Reservation.POISONED]
    assert asyncio.run(send(1, fresh=True)) == [Reservation.GRANTED]
    with shared.database.reading() as connection:
        (total,) = read_totals(connection, tenant, "ev")
    # Each request may have been paid, so each counts.
    assert (total.calls, total.unknown_tokens) == (MAX_SENDS + 1, 10 * (MAX_SENDS + 1))
    asyncio.run(votes.finish(call, None, CallCost(1, 1, 0)))
    assert asyncio.run(send(1)) == [Reservation.GRANTED]
