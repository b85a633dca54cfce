"""The pages of evaluations, cases and home: figures, files, roles and tenants."""

import html
import json
import re
import shlex
from types import SimpleNamespace
from typing import cast

import pytest
from tests.api.conftest import Deployment, new_tenant
from tests.console.conftest import SignIn

from meruit.cli.demo.support_replies import CRITERIA, make_cases
from meruit.console.app import find_handlers
from meruit.console.evidence_paths import list_paths
from meruit.console.output_excerpts import EXCERPT, LEAD, find_start
from meruit.console.page import PAGE
from meruit.console.pages.outcomes import find_changes
from meruit.evaluations.evaluation import Case, CaseError, EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.access import Role
from meruit.model.outcome import Labels, VerdictVersion
from meruit.model.verdict import CriterionResult, Status
from meruit.outcomes.service import Submission
from meruit.review.service import ReviewRequest, Reviews

CANARY = "canary-40711"


def evaluate(console: Deployment, tenant: str, agent: str, number: int = 40, **more: str) -> EvaluationRecord:
    evaluator = Evaluator(console.service.registrar, tenant)
    compiled = evaluator.compile(CRITERIA)
    started = evaluator.start(f"{CANARY} {agent}", compiled, tags={"agent": agent, **more})
    run_cases(evaluator, started, compiled, make_cases(agent, number))
    return evaluator.find(started.id)


@pytest.fixture(scope="module")
def filled(console: Deployment) -> list[EvaluationRecord]:
    """Two evaluations and some outcomes of one tenant."""
    made = [evaluate(console, "rich", agent) for agent in ("heron-2", "heron-3")]
    registrar = console.service.registrar
    criteria = registrar.compile(CRITERIA)
    for text in ("short", "We send it by 12 November, and it is with you on that day before noon, as promised before."):
        work = Submission(
            {"message": CANARY, "reference": text}, {"text": text}, {"duration_ms": 9}, Labels(agent_id="robot")
        )
        registrar.record_sync("rich", registrar.judge_sync(criteria, work))
    return made


def addresses(page: str) -> list[str]:
    return re.findall(r'href="(/[^"#]*)"', page)


def test_an_evaluation_says_its_rate_with_its_interval(filled: list[EvaluationRecord], reader: SignIn) -> None:
    page = reader(Role.AUDITOR, "rich").get(f"/evaluations/{filled[0].id}")
    assert page.status_code == 200
    assert re.search(r"\d+ of \d+ judged cases pass", page.text)
    for criterion in ("promises a date", "says what ours say", "is short", "is quick"):
        assert criterion in page.text


def test_the_score_of_an_open_outcome_is_a_lower_bound(console: Deployment, reader: SignIn) -> None:
    tenant, registrar = new_tenant(), console.service.registrar
    criteria = registrar.compile(CRITERIA)
    text = "We send it by 12 November, and it is with you on that day before noon, as promised."
    for reference in ({"reference": text}, {}):
        work = Submission({"message": CANARY, **reference}, {"text": text}, {"duration_ms": 9})
        registrar.record_sync(tenant, registrar.judge_sync(criteria, work))
    page = reader(Role.OPERATOR, tenant).get("/outcomes").text
    assert re.findall(r'data-l="score">(?:<span[^>]*>)?([^<]*)<', page) == ["≥ 0.75", "1"]


def test_filters_of_cases_narrow_them(console: Deployment, filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.OPERATOR, "rich")
    base = f"/evaluations/{filled[0].id}"
    every = [*Evaluations(console.store, "rich").cases(filled[0])]
    rows = one.get(f"{base}?show=all&format=csv").text.splitlines()
    assert len(rows) == 1 + len(every)
    unmet = one.get(f"{base}?criterion=promises+a+date&format=csv").text.splitlines()[1:]
    assert len(unmet) == sum(case.statuses[:1] in ("n", "i") for case in every)
    refund = one.get(f"{base}?show=all&tag=topic%3Drefund&format=csv").text
    assert set(re.findall(r"topic=(\w+)", refund)) == {"refund"}
    assert "No case matches" in one.get(f"{base}?q=nothing-has-this-text").text


def test_cases_are_sorted_as_a_whole(console: Deployment, filled: list[EvaluationRecord], reader: SignIn) -> None:
    one, base = reader(Role.OPERATOR, "rich"), f"/evaluations/{filled[0].id}?show=all"
    every = [*Evaluations(console.store, "rich").cases(filled[0])]
    slowest = sorted((case for case in every if case.latency_ms is not None), key=lambda case: -(case.latency_ms or 0))
    seen, address = list[str](), f"{base}&sort=-ms"
    while address:
        page = one.get(address).text
        seen += re.findall(r'href="/outcomes/(out_\w+)["?]', page)
        following = re.search(r'href="([^"]*)" rel="next"', page)
        address = "" if following is None else following[1].replace("&amp;", "&")
    assert seen[: len(slowest)] == [case.outcome_id for case in slowest]
    assert len(seen) == len(every)
    assert 'aria-sort="descending"' in one.get(f"{base}&sort=-ms").text


def test_cases_are_filtered_by_who_labelled_them(
    console: Deployment, filled: list[EvaluationRecord], reader: SignIn
) -> None:
    reviews = Reviews(console.store, "rich")
    review = reviews.create(ReviewRequest("labelled", filled[1].id, random=3, seed=3), by="test")
    for number in (1, 2, 3):
        reviews.label(review, number, labeller="zoe", choice="yes", by="test")
    page = reader(Role.AUDITOR, "rich").get(f"/evaluations/{filled[1].id}?reviewer=zoe").text
    labelled = {one.case_id for one in reviews.draws(review)[:3]}
    cases = {one.outcome_id for one in Evaluations(console.store, "rich").cases(filled[1]) if one.case_id in labelled}
    assert {*re.findall(r'href="/outcomes/(out_\w+)["?]', page)} == cases


def test_versions_say_which_criteria_they_judge_otherwise() -> None:
    def version(number: int, **statuses: Status) -> VerdictVersion:
        results = [
            CriterionResult("m", 1, 1, None, met=status is Status.MET, criterion_id=name, status=status)
            for name, status in statuses.items()
        ]
        return cast(
            "VerdictVersion", SimpleNamespace(version=number, result=SimpleNamespace(criterion_results=results))
        )

    found = find_changes(
        [
            version(1, a=Status.MET, b=Status.MET),
            version(2, a=Status.MET, b=Status.NOT_MET, c=Status.MET),
            cast("VerdictVersion", SimpleNamespace(version=3, result=None)),
        ]
    )
    assert found[2] == [("b", "met", "not_met"), ("c", "", "met")]
    assert [name for name, _, after in found[3] if not after] == ["a", "b", "c"]


def test_evaluations_are_listed_found_and_written_to_files(filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.OPERATOR, "rich")
    assert filled[1].id in one.get("/evaluations?q=heron-3").text
    assert filled[0].id not in one.get("/evaluations?q=heron-3").text
    assert "No evaluation matches" in one.get("/evaluations?status=running").text
    assert one.get("/evaluations?format=csv").text.count("\n") == 3
    assert one.get("/evaluations?format=xlsx").content[:2] == b"PK"
    assert one.get(f"/search?q={filled[0].name}").headers["location"] == f"/evaluations/{filled[0].id}"


def test_two_evaluations_are_compared_case_by_case(filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.OPERATOR, "rich")
    path = f"/compare?e={filled[0].id}&e={filled[1].id}"
    page = one.get(path).text
    assert "Difference in points" in page
    assert one.get(f"{path}&change=both+pass&format=csv").text.count("both pass") >= 1
    assert "No case matches" in one.get(f"{path}&change=nonsense").text
    moved = one.get(f"{path}&change=fixed&by=0.5&format=csv").text.splitlines()[1:]
    fixed = one.get(f"{path}&change=fixed&format=csv").text.splitlines()[1:]
    assert 0 < len(moved) < len(fixed)
    assert all(float(row.split(",")[5]) - float(row.split(",")[4]) >= 0.5 for row in moved)
    pair = next(link for link in addresses(page) if "case=" in link).replace("&amp;", "&")
    assert "Output, A to B" in one.get(pair).text
    assert one.get(f"{path}&case=no-such").status_code == 404
    assert "Choose two" in one.get(f"/compare?e={filled[0].id}").text
    assert one.get(f"/compare?e={filled[0].id}&e=ev_none").status_code == 404


def test_compared_cases_are_narrowed_by_criterion(
    console: Deployment, filled: list[EvaluationRecord], reader: SignIn
) -> None:
    one, evaluations = reader(Role.OPERATOR, "rich"), Evaluations(console.store, "rich")
    path = f"/compare?e={filled[0].id}&e={filled[1].id}&change=fixed&change=broken&change=both+fail"
    place = evaluations.criteria(filled[0]).ids.index("is short")
    sides = [{case.case_id: case for case in evaluations.cases(each)} for each in filled]
    unmet = {name for side in sides for name, case in side.items() if case.statuses[place] in ("n", "i")}

    def listed(query: str) -> set[str]:
        return {row.split(",")[0] for row in one.get(f"{path}{query}&format=csv").text.splitlines()[1:]}

    narrowed = listed("&criterion=is+short")
    assert narrowed == listed("") & unmet
    assert 0 < len(narrowed) < len(listed(""))
    assert listed("&criterion=is+short&by=0.25") == narrowed & listed("&by=0.25")
    # The chip of a chosen criterion stays, to be taken back, though no case is left.
    page = one.get(f"{path}&criterion=%3Cb%3Eno-such").text
    assert "No case matches" in page
    assert ("&lt;b&gt;no-such" in page, "<b>no-such" in page) == (True, False)


@pytest.fixture(scope="module")
def hostile(console: Deployment) -> list[EvaluationRecord]:
    """Three evaluations of one dataset: hostile, long and failed outputs, and a case that the third does not have."""
    evaluator = Evaluator(console.service.registrar, "hostile")
    rule = {"id": "short", "metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3}
    compiled = evaluator.compile({"criteria": [rule]})
    same, made = "the same words " * 20, list[EvaluationRecord]()
    for name, text in (("one", "\u202e<script>alert(1)</script>"), ("two", "y" * 5_000), ("three", "three")):
        started = evaluator.start(name, compiled, dataset_digest="d" * 64)
        cases = [
            Case(id="text", output={"text": text}),
            Case(id="late", output={"text": f"{same}ends with {name}"}),
            Case(id="failed", error=CaseError.TARGET_ERROR, error_message="<i>no answer"),
        ]
        run_cases(evaluator, started, compiled, cases[: 2 if name == "three" else 3])
        made.append(evaluator.find(started.id))
    return made


def test_compared_outputs_are_cut_and_safe(hostile: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.AUDITOR, "hostile")
    path = "/compare?" + "&".join(f"e={each.id}" for each in hostile)
    changes = "".join(f"&change={name}" for name in ("broken", "fixed", "both+pass", "both+fail", "not+judged"))
    page = one.get(path + changes).text
    excerpts = [html.unescape(found) for found in re.findall(r'<p class="excerpt[^>]*><bdi>(.*?)</bdi>', page)]
    # The third evaluation does not have the case that failed.
    assert len(excerpts) == 8
    assert max(map(len, excerpts)) <= EXCERPT + 2
    assert ("<script>alert" in page, "\u202e" in page, "<i>no answer" in page) == (False, False, False)
    assert sum(found == "<i>no answer" for found in excerpts) == 2
    assert {found.rsplit(" ", 1)[1] for found in excerpts if found.startswith("…")} == {"one", "two", "three"}
    assert 'class="excerpt' not in one.get(f"{path}{changes}&columns=case,first").text


def test_excerpts_begin_near_the_first_difference() -> None:
    assert find_start(["a" * 200 + "b", "a" * 200 + "c"]) == 200 - LEAD
    assert [find_start(texts) for texts in ([], ["a" * 900], ["ab", "ac"], ["a" * 9_000] * 2)] == [0, 0, 0, 0]


def test_a_case_leads_to_the_same_case_elsewhere(
    console: Deployment, hostile: list[EvaluationRecord], filled: list[EvaluationRecord], reader: SignIn
) -> None:
    first, second, third = (
        {case.case_id: case.outcome_id for case in Evaluations(console.store, "hostile").cases(each)}
        for each in hostile
    )
    one = reader(Role.AUDITOR, "hostile")

    def leads_to(page: str) -> set[str]:
        return {*re.findall(r'href="/outcomes/(out_\w+)\?e=', page)}

    # Of the same dataset: without being asked.
    page = one.get(f"/outcomes/{first['text']}").text
    assert leads_to(page) == {second["text"], third["text"]}
    assert f"/compare?e={hostile[0].id}&e={hostile[2].id}&case=text" in map(html.unescape, addresses(page))
    assert leads_to(one.get(f"/outcomes/{first['failed']}").text) == {second["failed"]}
    # Without a dataset: where the address says what it was compared with.
    ours, theirs = (next(iter(Evaluations(console.store, "rich").cases(each))) for each in filled)
    rich = reader(Role.AUDITOR, "rich")
    assert leads_to(rich.get(f"/outcomes/{ours.outcome_id}").text) == set()
    asked = f"/outcomes/{ours.outcome_id}?e={filled[0].id}&e={filled[1].id}&e={hostile[0].id}&e=none"
    assert leads_to(rich.get(asked).text) == {theirs.outcome_id}


def test_a_case_shows_evidence_and_its_neighbours(filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.AUDITOR, "rich")
    listed = [
        link for link in addresses(one.get(f"/evaluations/{filled[0].id}").text) if link.startswith("/outcomes/out_")
    ]
    page = one.get(listed[1]).text
    assert f'href="{listed[0]}" data-key="k"' in page
    assert f'href="{listed[2]}" data-key="j"' in page
    assert "Reference, against the output" in page


def test_a_case_is_walked_through_as_its_list_is_filtered(
    console: Deployment, filled: list[EvaluationRecord], reader: SignIn
) -> None:
    one, evaluations = reader(Role.AUDITOR, "rich"), Evaluations(console.store, "rich")
    every = [*evaluations.cases(filled[0])]
    chosen = {
        "": [case for case in every if not case.success],
        "?tag=topic%3Drefund": [case for case in every if not case.success and case.tags["topic"] == "refund"],
        "?criterion=promises+a+date": [case for case in every if not case.success and case.statuses[0] in "ni"],
        "?verdict=pass": [case for case in every if case.verdict == "pass"],
    }
    for asked, cases in chosen.items():
        for place, case in enumerate(cases):
            page = html.unescape(one.get(f"/outcomes/{case.outcome_id}{asked}").text)
            assert f"ase {place + 1:,} of {len(cases):,}" in page
            beside = {"j": place + 1, "k": place - 1}
            for key, other in beside.items():
                there = 0 <= other < len(cases)
                link = f'href="/outcomes/{cases[other].outcome_id}{asked}" data-key="{key}"' if there else ""
                assert link in page
                assert there == (f'data-key="{key}"' in page)
    passing = next(case for case in every if case.success)
    # A case that is not in the list still leads to those around it.
    assert "failing</a>" in one.get(f"/outcomes/{passing.outcome_id}").text


def test_an_outcome_can_be_taken_away(filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.AUDITOR, "rich")
    outcome = next(
        link for link in addresses(one.get("/outcomes?agent=robot").text) if link.startswith("/outcomes/out_")
    )
    assert "Version 1" in one.get(outcome).text
    assert one.get(f"{outcome}/bundle").content[:2] == b"PK"
    assert one.get(f"{outcome}/receipt").json()
    assert one.get(f"{outcome}/work").json()["input"]["message"] == CANARY
    assert one.get(f"{outcome}?version=9").status_code == 404
    assert one.get("/outcomes?format=csv").text.count("\n") == 3
    assert "No outcome matches" in one.get("/outcomes?verdict=error").text


def test_home_counts_the_outcomes_of_thirty_days(filled: list[EvaluationRecord], reader: SignIn) -> None:
    page = reader(Role.OPERATOR, "rich").get("/").text
    assert "2 outcomes" in page
    assert "Nothing needs you." in page


def test_a_new_tenant_gets_a_command_that_records_its_first_outcome(console: Deployment, reader: SignIn) -> None:
    tenant = new_tenant()
    operator = reader(Role.OPERATOR, tenant)
    page = operator.get("/").text
    assert "Nothing is recorded yet" in page
    (command,) = re.findall(r'data-copy="(curl [^"]*)"', page)
    *_, address, _, key, _, body = shlex.split(html.unescape(command))
    assert re.fullmatch(r"https?://[^/]+/v1/verify", address)
    assert key == "Authorization: Bearer $MERUIT_KEY"
    reply = console.ask("POST", "/v1/verify", key=console.key(Role.OPERATOR, tenant), json=json.loads(body))
    assert (reply.status_code, reply.json()["result"]["verdict"]) == (200, "pass")
    assert "1 outcome" in operator.get("/").text
    assert "curl" not in reader(Role.AUDITOR, new_tenant()).get("/").text


def test_an_agent_sees_how_its_own_work_ended_and_no_more(filled: list[EvaluationRecord], reader: SignIn) -> None:
    own = reader(Role.AGENT, "rich", agent_id="robot")
    assert own.get("/").headers["location"] == "/outcomes"
    listed = [link for link in addresses(own.get("/outcomes").text) if link.startswith("/outcomes/out_")]
    assert len(listed) == 2
    assert CANARY not in own.get(listed[0]).text
    assert own.get(f"{listed[0]}/work").status_code == 403
    stranger = reader(Role.AGENT, "rich", agent_id="another")
    assert stranger.get(listed[0]).status_code == 404
    for path in ("/evaluations", f"/evaluations/{filled[0].id}", "/compare"):
        assert own.get(path).status_code == 403


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AUDITOR, Role.ADMIN])
def test_no_page_shows_another_tenants_records(
    console: Deployment, filled: list[EvaluationRecord], reader: SignIn, role: Role
) -> None:
    outcome = next(Evaluations(console.store, "rich").cases(filled[0])).outcome_id
    one = reader(role, "poor")
    fixed = [info.path for route in find_handlers() if (info := route.opt.get(PAGE)) and "{" not in info.path]
    direct = [f"/evaluations/{filled[0].id}", f"/outcomes/{outcome}", f"/compare?e={filled[0].id}&e={filled[1].id}"]
    for path in [*fixed, *direct, f"/outcomes/{outcome}/work", "/outcomes?agent=robot"]:
        page = one.get(path)
        assert CANARY not in page.text, path
        assert page.status_code != 500, path
    assert [one.get(path).status_code for path in direct] == [404, 404, 404]


def test_names_are_found(filled: list[EvaluationRecord], reader: SignIn) -> None:
    one = reader(Role.AUDITOR, "rich")
    both = one.get(f"/search?q={CANARY.upper()}").text
    assert [link for link in addresses(both) if link.startswith("/evaluations/ev_")] == [
        f"/evaluations/{each.id}" for each in reversed(filled)
    ]
    assert one.get(f"/search?q={CANARY} heron-2").headers["location"] == f"/evaluations/{filled[0].id}"
    assert one.get("/search?q=robot").headers["location"] == "/outcomes?agent=robot"
    assert CANARY not in reader(Role.AUDITOR, "poor").get("/search?q=heron").text


def test_an_evaluation_without_a_verdict_says_what_is_missing(console: Deployment, reader: SignIn) -> None:
    evaluator = Evaluator(console.service.registrar, "bare")
    compiled = evaluator.compile(CRITERIA)
    started = evaluator.start("nothing judged", compiled, planned=5)
    run_cases(evaluator, started, compiled, iter([Case(id="a", error_message="no answer")]))
    one = reader(Role.OPERATOR, "bare")
    page = one.get(f"/evaluations/{started.id}").text
    assert "could be judged" in page
    case = next(link for link in addresses(page) if link.startswith("/outcomes/out_"))
    assert "Nothing to judge" in one.get(case).text


def test_evidence_says_what_was_looked_for_and_what_was_not_found() -> None:
    found = {"missing": ["a date"], "found": ["a name"]}
    assert list_paths(found) == [("output", "a date", "not found"), ("output", "a name", "found")]
    assert list_paths({**found, "more": 1}) == []
    assert list_paths({"missing": 1, "found": []}) == []
    assert list_paths({"paths": [{"path": "$.a", "expected": 1}], **found}) == [("$.a", "1", "nothing")]
