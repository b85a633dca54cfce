"""Tasks that are proved before anyone is measured by them: nothing, gold, and gold that was spoilt."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit import VerificationEngine
from meruit.benchmarks.lint import MAX_SURVIVORS, TaskReport, _list_names, lint_task
from meruit.benchmarks.mutations import GRAVE, environment_mutants
from meruit.model.assertion import allows_none
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind, make_item
from meruit.model.task import Task
from meruit.verify.lint.criteria import Severity

ENGINE = VerificationEngine()
ASKED: dict[str, Any] = {
    "label": "asked",
    "assert": "portal-state-match",
    "correlate_by": {"resource": "prior_auth", "member": "M1"},
    "changed": "created",
    "count": 1,
    "fields": {"cpt": "72148"},
}
UNTOUCHED = {"label": "untouched", "assert": "state-unchanged"}
BEFORE: EnvironmentState = {
    "portal": Snapshot(
        SourceKind.ROWS, [make_item("member/M1", b'{"name":"Ann"}'), make_item("member/M2", b'{"name":"Bob"}')]
    ),
    "call": Snapshot(SourceKind.VOICE),
}


def rows(*more: tuple[str, bytes]) -> EnvironmentState:
    """The world with rows added."""
    items = [*BEFORE["portal"].items, *(make_item(key, body) for key, body in more)]
    return BEFORE | {"portal": Snapshot(SourceKind.ROWS, items)}


GOLD = rows(("prior_auth/1", b'{"member":"M1","cpt":"72148"}'))


def lint(
    *criteria: dict[str, Any], gold: EnvironmentState | None = None, before: EnvironmentState = BEFORE, **more: Any
) -> TaskReport:
    sources = {name: str(snapshot.kind) for name, snapshot in BEFORE.items()}
    written = {"id": "t1", "instruction": "ask", "sources": sources, "criteria": [*criteria], **more}
    return lint_task(ENGINE, Task.model_validate(written), before, {"seeded": "M1"}, gold)


def codes(report: TaskReport) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.criterion_id) for finding in report.findings]


# The agent that does nothing


def test_a_task_that_asks_for_something_is_not_met_by_nothing() -> None:
    report = lint(ASKED, UNTOUCHED)
    assert (report.ok, codes(report), report.nothing) == (True, [], "fail")
    assert (report.free, report.gold, report.mutants_tried) == ({"untouched": 0}, None, 0)


def test_points_for_nothing_are_named() -> None:
    report = lint(ASKED, UNTOUCHED | {"weight": 1})
    assert (report.ok, codes(report), report.nothing) == (True, [("points_for_nothing", None)], "partial")
    assert " 0.5; " in report.findings[0].message
    assert report.free == {"untouched": 1}


def test_criteria_that_pass_on_nothing_are_named() -> None:
    free = {"label": "free", "assert": "portal-state-match", "correlate_by": {"resource": "member", "name": "Ann"}}
    report = lint(ASKED, free | {"weight": 3})
    assert codes(report) == [("points_for_nothing", None), ("passes_on_nothing", "free")]
    assert (report.ok, report.free) == (True, {"free": 3.0})
    alone = lint(free)
    assert (alone.ok, alone.nothing) == (False, "pass")
    assert codes(alone) == [("null_agent_passes", None), ("passes_on_nothing", "free")]


NONE_OF = {"assert": "portal-state-match", "correlate_by": {"resource": "prior_auth"}}


@pytest.mark.parametrize(
    "guard",
    [
        UNTOUCHED,
        NONE_OF | {"count": 0},
        NONE_OF | {"count": "<=1"},
        NONE_OF | {"count": "< 2"},
        NONE_OF | {"count": [0, 2]},
        NONE_OF | {"count": {"max": 1}},
        NONE_OF | {"count": {"min": 0, "max": 3}},
        {"assert": "portal-state-match", "correlate_by": {"resource": "member", "name": "Ann"}, "changed": "none"},
        {"assert": "voice-transcript", "forbidden": ["you have"]},
    ],
    ids=str,
)
def test_what_forbids_is_met_by_nothing_and_meant_so(guard: dict[str, Any]) -> None:
    report = lint(ASKED, guard | {"label": "guard", "weight": 0})
    assert report.findings == []
    assert set(report.free) <= {"guard"}


FIRST = ASKED | {"label": "first", "count": ">=1", "match": "first"}


@pytest.mark.parametrize("asked", [{}, {"changed": "any"}, {"count": [1, 2]}])
def test_judging_the_first_item_lets_the_agent_choose_it(asked: dict[str, Any]) -> None:
    (finding,) = [one for one in lint(FIRST | asked).findings if one.code == "agent_chooses_first"]
    assert (finding.severity, finding.criterion_id) == (Severity.WARNING, "first")
    assert "`match: all`" in finding.message


@pytest.mark.parametrize("asked", [{"match": "best"}, {"count": 1}, {"changed": "none"}])
def test_no_warning_if_the_agent_cannot_choose_the_first(asked: dict[str, Any]) -> None:
    assert "agent_chooses_first" not in [one.code for one in lint(FIRST | asked).findings]


@pytest.mark.parametrize("wrong", [{"count": "some"}, {"when": "made ="}])
def test_an_unreadable_criterion_is_reported_once(wrong: dict[str, Any]) -> None:
    found = [one.code for one in lint(CAPTURING, FIRST | wrong).findings if one.criterion_id == "first"]
    assert found[0] == "unsupported_assertion"
    assert "agent_chooses_when" not in found


CAPTURING = ASKED | {"label": "captures", "capture": "made"}
DEPENDING = ASKED | {"label": "depends"}


@pytest.mark.parametrize(
    "asked",
    [
        {"when": "made.cpt == '72148'"},
        {"when": "seeded == 'M1' and made"},
        {
            "let": {"who": {"correlate_by": {"resource": "member", "name": "${made.name}"}, "path": "name"}},
            "when": "who == 'Ann'",
        },
    ],
)
def test_a_condition_on_new_items_is_the_agents_choice(asked: dict[str, Any]) -> None:
    (finding,) = [one for one in lint(CAPTURING, DEPENDING | asked).findings if one.code == "agent_chooses_when"]
    assert (finding.severity, finding.criterion_id) == (Severity.WARNING, "depends")
    assert "made" in finding.message
    assert "`let`" in finding.message


@pytest.mark.parametrize(
    ("capturing", "asked"),
    [
        ({}, {"when": "seeded == 'M1'"}),
        ({}, {"fields": {"cpt": "${made.cpt}"}}),
        ({"changed": "none", "correlate_by": {"resource": "member"}}, {"when": "made.name == 'Ann'"}),
        (
            {},
            {
                "let": {"who": {"correlate_by": {"resource": "member", "name": "Ann"}, "path": "name"}},
                "when": "who == 'Ann'",
            },
        ),
    ],
)
def test_a_condition_on_the_start_state_is_not_a_choice(capturing: dict[str, Any], asked: dict[str, Any]) -> None:
    assert "agent_chooses_when" not in [one.code for one in lint(CAPTURING | capturing, DEPENDING | asked).findings]


def test_a_task_without_criteria_cannot_pass() -> None:
    assert codes(lint()) == [("no_criteria", None)]
    assert not lint().ok


def test_criteria_that_cannot_be_judged_are_errors() -> None:
    unknown = {"label": "odd", "assert": "portal-state-mach"}
    wrong = {"label": "wrong", "assert": "portal-state-match", "correlate_by": {"member": "M1"}, "count": "many"}
    down: EnvironmentState = BEFORE | {"portal": Snapshot(SourceKind.ROWS, trouble="down")}
    report = lint(unknown, wrong)
    assert codes(report) == [("unsupported_assertion", "odd"), ("unsupported_assertion", "wrong")]
    assert "portal-state-match" in report.findings[0].message
    assert codes(lint(ASKED, before=down)) == [("check_error", "asked")]
    assert not lint(ASKED, before=down).ok


def test_facts_of_the_seed_and_of_the_task_can_be_used() -> None:
    by_fact = ASKED | {"correlate_by": {"resource": "prior_auth", "member": "${seeded}"}, "fields": {"cpt": "${code}"}}
    assert lint(by_fact, gold=GOLD, facts={"code": "72148"}).gold == "pass"


def test_how_many_may_be_there_is_read_as_the_checks_read_it() -> None:
    assert [allows_none(count) for count in (0, "<3", [0, 1], {"max": 2}, 1, ">=1", "many", None)] == [
        *([True] * 4),
        *([False] * 4),
    ]


# The gold run


def test_a_failing_gold_run_is_an_error_with_its_criteria() -> None:
    report = lint(ASKED, UNTOUCHED, gold=rows(("prior_auth/1", b'{"member":"M1","cpt":"1"}')))
    assert (report.ok, report.gold, codes(report)) == (False, "fail", [("gold_fails", None)])
    assert report.findings[0].message.endswith("(fail, score 0): asked")


def test_good_criteria_notice_every_mistake() -> None:
    report = lint(ASKED, UNTOUCHED | {"weight": 0}, gold=GOLD)
    assert (report.ok, report.gold, report.findings, report.survivors) == (True, "pass", [], [])
    assert set(report.failed_by) == {"asked", "untouched"}
    assert report.mutants_tried == sum(1 for _ in environment_mutants(BEFORE, GOLD))


def test_mistakes_that_nothing_notices_are_named() -> None:
    report = lint(ASKED, gold=GOLD)
    touched = [finding for finding in report.findings if finding.code == "mutant_passes"]
    assert {finding.severity for finding in touched} == {Severity.WARNING}
    assert any("portal:member/M1 touched" in finding.message for finding in touched)
    assert any("portal:member/M1 deleted" in finding.message for finding in touched)
    assert "portal:member/M1 deleted" in report.survivors
    assert report.ok


def test_what_was_done_must_not_be_undone_unnoticed() -> None:
    more = rows(("prior_auth/1", b'{"member":"M1","cpt":"72148"}'), ("note/1", b'{"text":"called"}'))
    noted = {"label": "noted", "assert": "portal-state-match", "correlate_by": {"resource": "note"}, "weight": 0.1}
    report = lint(ASKED, noted, UNTOUCHED, gold=more)
    (undone,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert undone.code == "mutant_passes"
    assert "portal:note/1 undone;" in undone.message
    assert not report.ok


def test_doing_it_twice_is_noticed() -> None:
    loose, twice = ASKED | {"count": ">=1"}, "portal:prior_auth/1 done twice"
    assert twice in lint(loose, gold=GOLD).survivors
    assert twice not in lint(ASKED, gold=GOLD).survivors
    assert twice not in lint(loose, UNTOUCHED, gold=GOLD).survivors


def test_a_criterion_that_no_mistake_fails_is_named() -> None:
    idle = NONE_OF | {"label": "idle", "correlate_by": {"resource": "appeal"}, "count": 0}
    assert ("never_fails", "idle") in codes(lint(ASKED, UNTOUCHED, idle | {"weight": 0.1}, gold=GOLD))


def test_unchecked_fields_are_counted_together() -> None:
    gold = rows(("prior_auth/1", b'{"member":"M1","cpt":"72148","note":"please"}'))
    (finding,) = [one for one in lint(ASKED, UNTOUCHED, gold=gold).findings if one.code == "fields_unasked"]
    assert finding.severity is Severity.WARNING
    assert "portal:prior_auth/1 without note" in finding.message


def test_a_long_list_is_cut_between_entries() -> None:
    names = [f"field_{number:03}" for number in range(60)]
    row = json.dumps({"member": "M1", "cpt": "72148"} | dict.fromkeys(names, "x")).encode()
    report = lint(ASKED, UNTOUCHED, gold=rows(("prior_auth/1", row)))
    (finding,) = [one for one in report.findings if one.code == "fields_unasked"]
    head, _, listed = finding.message.partition(": ")
    named, _, more = listed.rpartition(" and ")
    assert (len(report.survivors), report.survived > MAX_SURVIVORS) == (MAX_SURVIVORS, True)
    assert head.startswith(f"{report.survived} mutants ")
    assert more == f"{report.survived - len(named.split(', '))} more"
    assert set(report.survivors) <= {one.name for one in environment_mutants(BEFORE, rows(("prior_auth/1", row)))}
    assert all(name.startswith("portal:prior_auth/1 ") for name in named.split(", "))


@given(st.lists(st.text("abc ", min_size=1, max_size=200), min_size=1, max_size=20))
def test_what_is_listed_is_whole_and_what_is_not_is_counted(names: list[str]) -> None:
    said = _list_names(names)
    assert said == ", ".join(names) or any(
        said == f"{', '.join(names[:number])} and {len(names) - number} more" for number in range(1, len(names))
    )


def test_unnoticed_undone_work_is_always_reported() -> None:
    notes = [(f"note/{number:02}", b'{"a":"b"}') for number in range(12)]
    report = lint(NONE_OF | {"count": 0}, gold=rows(*notes))
    told = [finding for finding in report.findings if finding.code == "mutant_passes"]
    assert [finding.severity for finding in told[:12]] == [Severity.ERROR] * 12
    assert (told[-1].severity, " 8 mutants " in told[-1].message) == (Severity.WARNING, True)
    assert len(told) == MAX_SURVIVORS + 1


def test_a_gold_run_is_compared_with_its_own_start() -> None:
    older: EnvironmentState = BEFORE | {
        "portal": Snapshot(SourceKind.ROWS, [make_item("member/M9", b'{"name":"Zoe"}')])
    }
    after = older | {
        "portal": Snapshot(
            SourceKind.ROWS, [*older["portal"].items, make_item("prior_auth/1", b'{"member":"M1","cpt":"72148"}')]
        )
    }
    written = {"id": "t1", "instruction": "x", "sources": {"portal": "rows"}, "criteria": [ASKED, UNTOUCHED]}
    task = Task.model_validate(written)
    assert lint_task(ENGINE, task, BEFORE, {}, after).gold == "fail"
    report = lint_task(ENGINE, task, BEFORE, {}, after, older)
    assert (report.gold, report.survivors) == ("pass", [])


# Mutants

BODIES = st.sampled_from(
    [b'{"a":1,"b":[true,{"c":"x"}],"d":1.50}', b"not json", b"", b"\xff\xfe", b"[1]", b"MSH|^~\\&|A\rPID|1|2"]
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EnvironmentState, EnvironmentState]:
    """A world before and after."""
    found = []
    kinds = draw(st.lists(st.sampled_from(list(SourceKind)), min_size=1, max_size=3, unique=True))
    for _ in range(2):
        world: EnvironmentState = {}
        for kind in kinds:
            keys = (
                ("000001", "000002") if kind in (SourceKind.HL7, SourceKind.X12, SourceKind.VOICE) else ("a/1", "b/2")
            )
            here = draw(st.lists(st.sampled_from(keys), unique=True))
            world[str(kind)] = Snapshot(kind, [make_item(key, draw(BODIES)) for key in sorted(here)])
        found.append(world)
    return found[0], found[1]


@given(worlds())
def test_every_mutant_differs_in_the_source_that_it_names(
    pair: tuple[EnvironmentState, EnvironmentState],
) -> None:
    before, after = pair
    for mutant in environment_mutants(before, after):
        assert mutant.harm in GRAVE | {"dropped", "changed"}
        differing = [name for name in after if mutant.state[name] != after[name]]
        assert differing == [mutant.name.split(":")[0].split(" ")[0]], mutant.name
        for snapshot in mutant.state.values():
            keys = [one.key for one in snapshot.items]
            assert keys == sorted(set(keys)), mutant.name


@given(worlds())
def test_everything_that_was_done_is_undone_by_some_mutant(pair: tuple[EnvironmentState, EnvironmentState]) -> None:
    before, after = pair
    undone = {mutant.name for mutant in environment_mutants(before, after) if mutant.harm == "undone"}
    for name, snapshot in after.items():
        changed = set(before[name].manifest().items()) ^ set(snapshot.manifest().items())
        if snapshot.kind is SourceKind.ANSWER:
            assert (f"{name} undone" in undone) is bool(snapshot.items)
        elif snapshot.kind is SourceKind.VOICE:
            said = {key for key, _ in changed} & snapshot.manifest().keys()
            assert (f"{name} undone" in undone) is bool(said)
        else:
            assert {f"{name}:{key} undone" for key, _ in changed} <= undone


def test_nothing_done_is_no_reason_to_undo_anything() -> None:
    assert {mutant.harm for mutant in environment_mutants(BEFORE, BEFORE)} <= {"touched", "deleted", "added"}


# What the author leaves open


def test_a_mutant_of_what_except_allows_is_not_reported() -> None:
    more = rows(("prior_auth/1", b'{"member":"M1","cpt":"72148"}'), ("note/1", b'{"member":"M1"}'))
    allowed = UNTOUCHED | {"except": ["portal:note/*"]}
    report = lint(ASKED, allowed, gold=more)
    assert report.ok
    assert report.survivors == []
    # What a criterion asks for is tested all the same.
    noted = {"label": "noted", "assert": "portal-state-match", "correlate_by": {"resource": "note"}}
    assert "portal:note/1 member changed" in lint(ASKED, noted, allowed, gold=more).survivors
