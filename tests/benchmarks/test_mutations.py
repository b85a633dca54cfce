"""Mutants of a good run's world: what was done undone, done twice and done wrongly, and more done than was asked."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meruit.benchmarks.mutations import GRAVE, OF_A_KIND, EnvironmentMutant, environment_mutants
from meruit.model.environment import EnvironmentState, Item, Snapshot, SourceKind, make_item

FHIR, FILES, VOICE, HL7 = SourceKind.FHIR, SourceKind.FILES, SourceKind.VOICE, SourceKind.HL7


def resource(key: str, version: str = "1", **fields: object) -> Item:
    kind, _, name = key.partition("/")
    return make_item(key, json.dumps({"resourceType": kind, "id": name, **fields}).encode(), version=version)


def world(kind: SourceKind, *items: Item) -> EnvironmentState:
    return {"it": Snapshot(kind, [*items])}


def mutants(kind: SourceKind, before: list[Item], after: list[Item]) -> list[EnvironmentMutant]:
    return list(environment_mutants(world(kind, *before), world(kind, *after)))


def named(found: list[EnvironmentMutant], harm: str) -> list[str]:
    return [one.name for one in found if one.harm == harm]


KEYS = st.sampled_from([f"{kind}/{number}" for kind in ("Patient", "Slot", "Task") for number in range(4)])
RESOURCES = st.dictionaries(KEYS, st.integers(1, 2)).map(
    lambda drawn: [resource(key, str(version), status=f"s{version}") for key, version in sorted(drawn.items())]
)


@given(RESOURCES, RESOURCES)
def test_a_mutant_always_differs_from_its_original(before: list[Item], after: list[Item]) -> None:
    found = mutants(FHIR, before, after)
    good = world(FHIR, *after)
    assert all(one.state["it"].items != good["it"].items for one in found)
    assert len({one.name for one in found}) == len(found)


@given(RESOURCES, RESOURCES)
def test_every_change_is_undone_in_some_mutant(before: list[Item], after: list[Item]) -> None:
    was, now = ({one.key: one for one in several} for several in (before, after))
    changed = {key for key in {*was, *now} if was.get(key) != now.get(key)}
    found = mutants(FHIR, before, after)
    assert {*named(found, "undone")} == {f"it:{key} undone" for key in changed}
    assert {*named(found, "twice")} == {f"it:{key} done twice" for key in now.keys() - was.keys()}


def test_something_of_each_kind_is_touched_deleted_and_added() -> None:
    standing = [resource(f"{kind}/{number}") for kind in ("Patient", "Slot") for number in range(5)]
    found = mutants(FHIR, standing, standing)
    assert Counter(one.harm for one in found) == {"touched": 2, "deleted": 2, "added": 2 * OF_A_KIND}
    assert named(found, "deleted") == ["it:Patient/0 deleted", "it:Slot/0 deleted"]
    assert all(one.harm in GRAVE for one in found)


def test_a_duplicated_file_has_a_temporary_name() -> None:
    found = mutants(
        FILES,
        [make_item("out/a.csv", b"a\n1\n")],
        [make_item("out/a.csv", b"a\n1\n"), make_item("out/b.csv", b"a\n2\n")],
    )
    assert named(found, "twice") == ["it:out/b.csv done twice"]
    assert named(found, "added") == ["it:out/a.csv.tmp added"]
    twice = next(one for one in found if one.harm == "twice")
    assert [one.key for one in twice.state["it"].items] == ["out/a.csv", "out/b.csv", "out/b.csv.tmp"]


def test_a_call_is_undone_as_a_whole_and_may_repeat_itself() -> None:
    said = [make_item(f"{number:06}", b"Hello", facts={"speaker": "agent"}) for number in (1, 2)]
    found = mutants(VOICE, [], said)
    assert [(one.name, one.harm) for one in found] == [
        ("it undone", "undone"),
        ("it without 000001", "dropped"),
        ("it without 000002", "dropped"),
    ]
    assert found[0].state["it"].items == []
    assert mutants(VOICE, [], []) == []


def test_a_message_loses_each_segment_and_has_each_field_wrong() -> None:
    message = b"MSH|^~\\&|A\rPID|1||483671\rOBX|1|NM\r"
    found = mutants(HL7, [], [make_item("000001", message)])
    bodies = {one.name: one.state["it"].items[0].body for one in found if one.harm in ("dropped", "changed")}
    assert bodies["it:000001 without 'OBX|1|NM'"] == "MSH|^~\\&|A\rPID|1||483671\r"
    assert bodies["it:000001 PID field 3 of part 2 changed"] == "MSH|^~\\&|A\rPID|1||483671x\rOBX|1|NM\r"
    assert not [name for name in bodies if "MSH field" in name]


def test_a_text_loses_each_line() -> None:
    found = mutants(FILES, [], [make_item("a.csv", b"name\nAnn\nBob\n")])
    assert [one.state["it"].items[0].body for one in found if one.harm == "dropped"] == ["name\nBob\n", "name\nAnn\n"]
