"""FHIR search, decided here by R4's rules."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meruit.checks.fhir_types.period import COMPARE, parse_time_span, time_span_of
from meruit.checks.fhir_types.reference import base_of, mark_own_references, normal_reference
from meruit.checks.fhir_types.search import SHAPING, compile_search, parameters_of
from meruit.checks.fhir_types.search_parameters import parameters_by_name
from meruit.checks.formats.json_path import compile_path
from meruit.errors import AuthorError
from meruit.model.environment import Read

LISTED = (
    "Patient Practitioner PractitionerRole Organization Location Appointment Schedule Slot Encounter Observation "
    "DiagnosticReport Condition Procedure AllergyIntolerance MedicationRequest MedicationStatement MedicationDispense "
    "ServiceRequest Task Communication CommunicationRequest DocumentReference Coverage CoverageEligibilityRequest "
    "CoverageEligibilityResponse Claim ClaimResponse Immunization CarePlan CareTeam Consent QuestionnaireResponse "
    "RelatedPerson"
)


def found(resource: dict[str, Any], asked: str | Sequence[tuple[str, str]], **more: Any) -> bool:
    """Whether a resource is found by `name=value`, or by several such."""
    pairs = [asked.split("=", 1)] if isinstance(asked, str) else asked
    wanted: dict[str, list[str]] = {}
    for name, value in pairs:
        wanted.setdefault(name, []).append(value)
    return compile_search(resource["resourceType"], wanted, **more)(resource)


# Dates, against every quarter of an hour of ten weeks: a text covers the moments whose own text begins with it. Minutes
# are written on the half hour only, so that between any two there is a moment that is in neither.

QUARTERS = range(96 * 75)
ZONES = {"Z": UTC, "+05:30": timezone(timedelta(hours=5.5)), "-06:00": timezone(timedelta(hours=-6))}
MOMENTS = [datetime(2026, 1, 20, tzinfo=UTC) + timedelta(minutes=15 * count) for count in QUARTERS]
SHOWN = {name: [moment.astimezone(zone).isoformat() for moment in MOMENTS] for name, zone in ZONES.items()}

days = st.dates(min_value=date(2026, 2, 1), max_value=date(2026, 3, 20)).map(str)
minutes = st.builds(
    "{}T{:02}:{}{}".format, days, st.integers(0, 23), st.sampled_from(["00", "30"]), st.sampled_from([*ZONES])
)
dates = st.sampled_from(["2026-02", "2026-03"]) | days | minutes
periods = st.fixed_dictionaries({}, optional={"start": dates, "end": dates}).filter(bool)


def covered(value: Any) -> set[int]:
    """The quarters of an hour in a date or period."""
    if isinstance(value, dict):
        first = min(covered(value["start"])) if "start" in value else QUARTERS[0]
        last = max(covered(value["end"])) if "end" in value else QUARTERS[-1]
        return {*range(first, last + 1)}
    zone = next((name for name in ZONES if value.endswith(name)), None)
    written = value.removesuffix(zone or "")
    return {count for count, shown in enumerate(SHOWN[zone or "Z"]) if shown.startswith(written)}


def r4(asked: set[int], target: set[int]) -> dict[str, bool]:
    """The words of the specification."""
    above, below = {*QUARTERS[max(asked) + 1 :]}, {*QUARTERS[: min(asked)]}
    return {
        "eq": asked >= target,
        "ne": not asked >= target,
        "gt": bool(above & target),
        "lt": bool(below & target),
        "ge": bool(above & target) or asked >= target,
        "le": bool(below & target) or asked >= target,
        "sa": not asked & target and above >= target,
        "eb": not asked & target and below >= target,
    }


@given(asked=dates, value=dates | periods)
def test_a_date_prefix_means_what_it_says_of_every_moment(asked: str, value: Any) -> None:
    target = covered(value)
    assume(target)  # or the period ends before it starts
    resource = {"resourceType": "Encounter", "period": value}
    for prefix, holds in r4(covered(asked), target).items():
        assert found(resource, f"date={prefix}{asked}") is holds, prefix
    assert found(resource, f"date={asked}") is found(resource, f"date=eq{asked}")


@given(st.datetimes(), st.integers(-14 * 60, 14 * 60))
def test_a_time_is_the_same_in_every_zone(moment: datetime, ahead: int) -> None:
    shown = moment.replace(microsecond=0).isoformat()
    offset = f"{'-' if ahead < 0 else '+'}{abs(ahead) // 60:02}:{abs(ahead) % 60:02}"
    here, there = parse_time_span(f"{shown}Z"), parse_time_span(f"{shown}{offset}")
    assert here is not None
    assert there is not None
    assert here.low - there.low == ahead * 60 * 10**9
    assert here.high - here.low == 10**9


@given(st.text(st.sampled_from("0123456789-T:.Z+"), max_size=26) | st.text(max_size=12))
def test_any_text_is_a_date_or_none(text: str) -> None:
    stretch = parse_time_span(text)
    assert stretch is None or stretch.low < stretch.high


# And, or, not.

codes = st.sampled_from(["a", "b", "c"])
systems = st.sampled_from(["http://s", "http://t"])
codings = st.fixed_dictionaries({}, optional={"system": systems, "code": codes})
observations = st.fixed_dictionaries(
    {"resourceType": st.just("Observation")},
    optional={
        "status": codes,
        "code": st.fixed_dictionaries({}, optional={"coding": st.lists(codings, max_size=3), "text": codes}),
        "subject": st.sampled_from(["Patient/a", "Group/a", "Patient/b"]).map(lambda to: {"reference": to}),
        "effectiveDateTime": dates,
        "valueQuantity": st.fixed_dictionaries({"value": st.integers(0, 9)}, optional={"unit": codes}),
    },
)
people = st.sampled_from(["a", "Patient/a", "b"])
answers = {
    "code": codes | st.builds("{}|{}".format, systems | st.just(""), codes),
    "status": codes,
    "subject": people,
    "patient": people,
    "date": st.builds("{}{}".format, st.sampled_from([*COMPARE]), dates),
    "value-quantity": st.builds("{}{}".format, st.sampled_from([*COMPARE]), st.integers(0, 9)),
}
questions = st.one_of([st.tuples(st.just(name), asked) for name, asked in answers.items()])
alternatives = st.one_of([st.tuples(st.just(name), asked, asked) for name, asked in answers.items()])


@given(observations, st.lists(questions, max_size=4))
def test_several_parameters_all_hold(resource: dict[str, Any], asked: list[tuple[str, str]]) -> None:
    assert found(resource, asked) is all(found(resource, [one]) for one in asked)


@given(observations, alternatives)
def test_a_comma_means_or(resource: dict[str, Any], asked: tuple[str, str, str]) -> None:
    name, first, second = asked
    either = found(resource, [(name, first)]) or found(resource, [(name, second)])
    assert found(resource, [(name, f"{first},{second}")]) is either


@given(observations, codes, codes)
def test_not_is_neither_and_holds_where_there_is_nothing(resource: dict[str, Any], one: str, other: str) -> None:
    assert found(resource, f"code:not={one},{other}") is not found(resource, f"code={one},{other}")


@given(observations)
def test_missing_tests_for_absence(resource: dict[str, Any]) -> None:
    for name, element in [("status", "status"), ("date", "effectiveDateTime"), ("subject", "subject")]:
        assert found(resource, f"{name}:missing=true") is (element not in resource)
        assert found(resource, f"{name}:missing=false") is (element in resource)


@given(observations, codes, systems)
def test_a_token_is_found_as_any_of_its_codings(resource: dict[str, Any], code: str, system: str) -> None:
    held = resource.get("code", {}).get("coding", [])
    pairs = [(one.get("system"), one.get("code")) for one in held]
    assert found(resource, f"code={code}") is any(one == code for _, one in pairs)
    assert found(resource, f"code={system}|{code}") is ((system, code) in pairs)
    assert found(resource, f"code=|{code}") is ((None, code) in pairs)
    assert found(resource, f"code={system}|") is any(one == system for one, _ in pairs)


@given(st.text(min_size=1, max_size=8))
def test_what_is_escaped_is_found_as_it_is(value: str) -> None:
    written = re.sub(r"([\\,|$])", r"\\\1", value)
    assert found({"resourceType": "Patient", "identifier": [{"value": value}]}, f"identifier={written}")
    assert found({"resourceType": "Patient", "name": [{"text": value}]}, f"name:exact={written}")


# References.

types = st.sampled_from(["Patient", "Practitioner"])
ids = st.text("ab1-.", min_size=1, max_size=4)
bases = st.sampled_from(["", "http://ehr.example/fhir/", "https://h/a/b/Patient/"])
versions = st.sampled_from(["", "/_history/1", "/_history/abc"])


@given(types, ids, bases, versions, versions)
def test_every_form_of_a_reference_is_the_same(kind: str, key: str, base: str, version: str, another: str) -> None:
    written, asked = f"{base}{kind}/{key}{version}", f"{base}{kind}/{key}{another}"
    assert normal_reference(written) == normal_reference(asked) == f"{base}{kind}/{key}"
    resource = {"resourceType": "Appointment", "participant": [{"actor": {"reference": written}}]}
    assert found(resource, f"actor={asked}")
    for ours in (resource, own(resource, base)):
        is_ours = not base or ours is not resource
        assert found(ours, f"actor={kind}/{key}") is is_ours
        assert found(ours, f"actor={key}") is is_ours
        assert found(ours, f"actor:{kind}={key}") is is_ours
        assert found(ours, f"{kind.lower()}={key}") is is_ours
        assert not found(ours, f"actor={kind}/{key}x")
        assert not found(ours, f"{'patient' if kind == 'Practitioner' else 'practitioner'}={key}")


@given(types, ids, bases, bases, versions)
def test_the_same_id_on_another_server_is_another_resource(
    kind: str, key: str, base: str, other: str, version: str
) -> None:
    assume(base != other)
    resource = {
        "resourceType": "Appointment",
        "participant": [{"actor": {"reference": f"{base}{kind}/{key}{version}"}}],
    }
    assert not found(resource, f"actor={other}{kind}/{key}")
    assert not found(own(resource, other or "http://ours/"), f"actor={other}{kind}/{key}")


def own(resource: dict[str, Any], base: str) -> dict[str, Any]:
    """The same as read from a server at that address."""
    return dict(mark_own_references(json.loads(json.dumps(resource)), base))


@pytest.mark.parametrize(
    ("what", "base"),
    [
        ("https://h/a/fhir/Patient?_count=200", "https://h/a/fhir/"),
        ("http://127.0.0.1:80/Patient", "http://127.0.0.1:80/"),
        ("https://h/fhir/metadata", "https://h/fhir/"),
        ("https://h/fhir/Patient/1", None),
        ("https://h/fhir/Patient declares nothing", None),
        ("https://h/fhir/Nobody?_count=200", None),
        ("/var/drop", None),
    ],
)
def test_the_address_of_a_server_is_known_from_what_was_asked_of_it(what: str, base: str | None) -> None:
    assert base_of([Read("the server's Date: today"), Read(what), Read("https://other/Patient")]) == (
        base or "https://other/"
    )
    assert base_of([Read(what)]) == base


@pytest.mark.parametrize(
    "text",
    [
        "urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0",
        "http://h/Patient?a=1",
        "#contained",
        "Patient",
        "Patient?identifier=1",
        "",
        "a/b",
    ],
)
def test_text_that_is_not_a_reference_stays_as_it_is(text: str) -> None:
    assert normal_reference(text) == text


def test_a_reference_that_names_no_type_is_found_as_it_is_written() -> None:
    to = {"reference": "urn:uuid:1"}
    assert found({"resourceType": "Claim", "patient": to}, "patient=urn:uuid:1")
    assert not found({"resourceType": "Claim", "patient": to}, "patient=1")
    assert not found({"resourceType": "Claim", "patient": to | {"type": "Group"}}, "patient=urn:uuid:1")


def test_a_reference_may_be_found_by_its_identifier() -> None:
    to = {"identifier": {"system": "http://mrn", "value": "7"}}
    assert found({"resourceType": "Claim", "patient": to}, "patient:identifier=http://mrn|7")
    assert not found({"resourceType": "Claim", "patient": to}, "patient:identifier=8")


def test_a_canonical_address_is_found_with_its_version_or_without() -> None:
    answers = {"resourceType": "QuestionnaireResponse", "questionnaire": "http://q.example/intake|2"}
    assert found(answers, r"questionnaire=http://q.example/intake")
    assert found(answers, r"questionnaire=http://q.example/intake|2")
    assert not found(answers, r"questionnaire=http://q.example/intake|3")


# Strings.


@given(st.text(st.sampled_from("aeiouéÉñßÆ zZ"), min_size=1, max_size=8), st.integers(1, 8))
def test_a_string_is_found_by_prefix_without_case_and_accents(name: str, length: int) -> None:
    patient = {"resourceType": "Patient", "name": [{"family": "Other"}, {"given": ["x", name]}]}
    start = name[:length]
    for asked in (start, start.upper(), start.lower(), start.replace("é", "e").replace("ñ", "n")):
        assert found(patient, f"given={asked}"), asked
        assert found(patient, f"name={asked}"), asked
    assert found(patient, f"given:contains={name[-length:]}")
    assert found(patient, f"given:exact={name}")
    assert not found(patient, f"given:exact={name}x")


# Quantities.

numbers = st.decimals(min_value=-100, max_value=100, allow_nan=False, places=2) | st.integers(-99, 99).map(Decimal)


@given(numbers, numbers)
def test_a_number_prefix_means_what_arithmetic_says(asked: Decimal, value: Decimal) -> None:
    resource = {"resourceType": "Observation", "valueQuantity": {"value": value, "unit": "mg"}}
    a, v = Fraction(asked), Fraction(value)
    half = Fraction(1, 2) * Fraction(10) ** int(asked.as_tuple().exponent)
    equal = a - half <= v < a + half
    expected = {"eq": equal, "ne": not equal, "gt": v > a, "lt": v < a, "ge": v >= a, "le": v <= a, "sa": v > a}
    for prefix, holds in (expected | {"eb": v < a}).items():
        assert found(resource, f"value-quantity={prefix}{asked}") is holds, prefix
        assert found(resource, f"value-quantity={prefix}{asked}||mg") is holds
        assert not found(resource, f"value-quantity={prefix}{asked}||kg")


# R4's own examples, and cases that a person would argue about.

EVE = {"resourceType": "Patient", "name": [{"given": ["Eve"]}]}
EVELYN = {"resourceType": "Patient", "name": [{"given": ["Evelyn"]}]}
SEVERINE = {"resourceType": "Patient", "name": [{"given": ["Severine"]}]}


def test_the_three_ways_of_asking_for_eve() -> None:
    assert [found(one, "given=eve") for one in (EVE, EVELYN, SEVERINE)] == [True, True, False]
    assert [found(one, "given:contains=eve") for one in (EVE, EVELYN, SEVERINE)] == [True, True, True]
    assert [found(one, "given:exact=Eve") for one in (EVE, EVELYN, SEVERINE)] == [True, False, False]
    assert not found(EVE, "given:exact=eve")


ONWARDS = {"start": "2013-01-21"}
FROM_15TH = {"start": "2013-03-15"}


@pytest.mark.parametrize(
    ("asked", "value", "holds"),
    [
        ("eq2013-01-14", "2013-01-14T00:00:00Z", True),
        ("eq2013-01-14", "2013-01-14T10:00:00Z", True),
        ("eq2013-01-14", "2013-01-15T00:00:00Z", False),
        ("ne2013-01-14", "2013-01-15T00:00:00Z", True),
        ("ne2013-01-14", "2013-01-14T00:00:00Z", False),
        ("ne2013-01-14", "2013-01-14T10:00:00Z", False),
        # The day holds moments before ten o'clock, and after it.
        ("lt2013-01-14T10:00Z", "2013-01-14", True),
        ("gt2013-01-14T10:00Z", "2013-01-14", True),
        ("ge2013-03-14", ONWARDS, True),
        ("le2013-03-14", ONWARDS, True),
        ("sa2013-03-14", FROM_15TH, True),
        ("sa2013-03-14", ONWARDS, False),
        ("sa2013-03-14", "2013-03-14T23:59:59Z", False),
        ("eb2013-03-14", ONWARDS, False),
        ("eb2013-03-14", FROM_15TH, False),
        ("eb2013-03-14", "2013-03-13", True),
        ("2013", "2013-12-31T23:59:59.999Z", True),
        ("2013", "2014", False),
        ("2013-12", "2013-12-31", True),
        ("2013-11", "2013-11-30", True),
        ("2013-11", "2013-12-01", False),
        ("2013-03-14", "2013-03-14T23:30:00-06:00", False),
        ("2013-03-15", "2013-03-14T23:30:00-06:00", True),
        ("9999", "9999-12-31T23:59:60Z", False),
        ("9999-12", "9999-12-31", True),
        ("2013-01-14T10:00:00.5Z", "2013-01-14T10:00:00.512Z", True),
        ("2013-01-14T10:00:00.51Z", "2013-01-14T10:00:00.5Z", False),
        # What is no date is never found, whatever was asked.
        ("ne2013", "2013-13-45", False),
        ("ne2013", "soon", False),
        ("ne2013", {}, False),
        ("ge2013", {"start": "2014", "end": "never"}, False),
    ],
)
def test_dates_are_stretches_of_time(asked: str, value: Any, holds: bool) -> None:
    assert found({"resourceType": "Encounter", "period": value}, f"date={asked}") is holds


def test_a_timing_lasts_from_its_first_event_to_its_last() -> None:
    events = {"event": ["2026-03-04", "2026-03-02"]}
    assert time_span_of(events) == time_span_of({"start": "2026-03-02", "end": "2026-03-04"})
    assert time_span_of({"repeat": {"boundsPeriod": {"start": "2026"}}}) == time_span_of({"start": "2026"})
    assert time_span_of({"event": []}) is None
    order = {"resourceType": "ServiceRequest", "occurrenceTiming": events}
    assert found(order, "occurrence=2026-03")
    assert not found(order, "occurrence=2026-03-02")


def test_what_has_no_zone_is_in_the_zone_that_is_given() -> None:
    visit = {"resourceType": "Appointment", "start": "2026-03-06T23:30:00-06:00"}
    assert not found(visit, "date=2026-03-06")
    assert found(visit, "date=2026-03-06", zone=ZoneInfo("America/Chicago"))
    assert found(visit, "date=2026-03-06T23:30", zone=ZoneInfo("America/Chicago"))
    # On the day that the clocks go forward, a day has 23 hours.
    day = parse_time_span("2026-03-08", ZoneInfo("America/Chicago"))
    assert day is not None
    assert day.high - day.low == 23 * 3600 * 10**9
    assert parse_time_span("9999-12-31", ZoneInfo("Asia/Tokyo")) is not None
    assert parse_time_span("0001-01-01", ZoneInfo("Asia/Tokyo")) is not None


PETER: dict[str, Any] = {
    "resourceType": "Patient",
    "id": "23",
    "meta": {
        "lastUpdated": "2026-03-06T10:00:00Z",
        "tag": [{"system": "http://t", "code": "run"}],
        "profile": ["http://p"],
    },
    "active": True,
    "gender": "male",
    "birthDate": "1974-12-25",
    "identifier": [{"system": "http://acme.org/patient", "value": "2345"}],
    "name": [{"use": "official", "family": "Chalmers", "given": ["Peter", "James"]}, {"text": "Jim the Plumber"}],
    "telecom": [{"system": "phone", "value": "555"}, {"system": "email", "value": "p@x.y"}, {"value": "9"}],
    "address": [{"line": ["534 Erewhon St"], "city": "PleasantVille", "postalCode": "3999"}],
    "generalPractitioner": [{"reference": "Practitioner/9"}],
    "managingOrganization": {"reference": "http://o.example/Organization/1"},
}


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ("_id=23", True),
        ("_id=22,23", True),
        ("_id=2", False),
        ("_lastUpdated=gt2026-03-06", False),
        ("_lastUpdated=ge2026-03-06", True),
        ("_tag=http://t|run", True),
        ("_tag=other", False),
        ("_profile=http://p", True),
        ("_profile=http://", False),
        ("active=true", True),
        ("active=false", False),
        ("active=True", False),
        ("gender=male", True),
        ("gender:not=male", False),
        ("gender:not=female", True),
        ("gender=http://hl7.org/fhir/administrative-gender|male", True),
        ("gender=http://elsewhere|male", False),
        ("gender=|male", True),
        ("identifier=http://acme.org/patient|2345", True),
        ("identifier=2345", True),
        ("identifier=|2345", False),
        ("identifier=http://acme.org/patient|", True),
        ("identifier=http://acme.org|2345", False),
        ("family=chal", True),
        ("name=jim", True),
        ("name=plumber", False),
        ("name:contains=PLUMBER", True),
        ("phone=555", True),
        ("phone=p@x.y", False),
        ("telecom=9", True),
        ("address=534", True),
        ("address=pleasant", True),
        ("address-city=Pleasantville", True),
        ("birthdate=1974-12-25", True),
        ("birthdate=1974", True),
        ("birthdate=lt1975", True),
        ("deceased=false", True),
        ("deceased=true", False),
        ("death-date:missing=true", True),
        ("general-practitioner=9", True),
        ("general-practitioner:Practitioner=9", True),
        ("general-practitioner:Organization=9", False),
        ("organization=http://o.example/Organization/1", True),
        ("organization=Organization/1", False),
        ("organization:missing=false", True),
        ("link:missing=true", True),
    ],
)
def test_peter_is_found_by_what_he_is(asked: str, holds: bool) -> None:
    assert found(PETER, asked) is holds


def test_the_dead_are_deceased_by_date_too() -> None:
    assert found(PETER | {"deceasedDateTime": "2026"}, "deceased=true")
    assert found(PETER | {"deceasedBoolean": True}, "deceased=true")
    assert found(PETER | {"deceasedBoolean": False}, "deceased=false")


def test_a_code_is_not_its_text() -> None:
    ache = {
        "resourceType": "Condition",
        "code": {"coding": [{"system": "http://acme.org/conditions/codes", "code": "ha125"}], "text": "Headache, mild"},
    }
    assert found(ache, "code=http://acme.org/conditions/codes|ha125")
    assert found(ache, "code=ha125")
    assert not found(ache, "code=HA125")
    assert not found(ache, r"code=Headache\, mild")
    assert found(ache, "code:text=headache")
    assert not found(ache, "code:text=ache")
    assert not found({"resourceType": "Condition", "code": "ha125"}, "code:text=ha125")


def quantity(value: Any, **more: Any) -> dict[str, Any]:
    return {"resourceType": "Observation", "valueQuantity": {"value": value, **more}}


UCUM = "http://unitsofmeasure.org"


@pytest.mark.parametrize(
    ("asked", "resource", "holds"),
    [
        ("100", quantity(Decimal("99.5")), True),
        ("100", quantity(Decimal("100.5")), False),
        ("100.00", quantity(Decimal("99.995")), True),
        ("100.00", quantity(Decimal("100.005")), False),
        ("lt100", quantity(Decimal("99.9")), True),
        ("lt100", quantity(100), False),
        ("ge100", quantity(100), True),
        (f"5.4|{UCUM}|mg", quantity(Decimal("5.44"), system=UCUM, code="mg", unit="milligram"), True),
        (f"5.4|{UCUM}|mg", quantity(Decimal("5.4"), unit="mg"), False),
        (f"5.4|{UCUM}|", quantity(Decimal("5.4"), system=UCUM, code="mg"), True),
        (f"5.40e-3|{UCUM}|g", quantity(Decimal("0.0054"), system=UCUM, code="g"), True),
        # Nothing is converted.
        (f"5.40e-3|{UCUM}|g", quantity(Decimal("5.4"), system=UCUM, code="mg"), False),
        ("5.4||mg", quantity(Decimal("5.4"), unit="mg"), True),
        ("5.4||mg", quantity(Decimal("5.4"), system=UCUM, code="mg"), True),
        ("5.4", quantity(5.4), True),
        # Below 5 is surely below 6, and perhaps below 4.
        ("lt6", quantity(5, comparator="<"), True),
        ("eb6", quantity(5, comparator="<"), True),
        ("lt4", quantity(5, comparator="<"), True),
        ("eb4", quantity(5, comparator="<"), False),
        ("gt9", quantity(5, comparator=">="), True),
        ("5", quantity(5, comparator=">"), False),
        # What is no number is never found.
        ("ne5", quantity("5.4"), False),
        ("ne5", quantity(True), False),
        ("ne5", quantity(Decimal("1e999999999")), False),
        ("ne5", {"resourceType": "Observation", "valueString": "5"}, False),
    ],
)
def test_a_number_is_as_precise_as_it_was_written(asked: str, resource: dict[str, Any], holds: bool) -> None:
    assert found(resource, f"value-quantity={asked}") is holds


def test_an_age_may_be_a_range() -> None:
    young = {"resourceType": "Condition", "onsetRange": {"low": {"value": 5, "unit": "a"}, "high": {"value": 9}}}
    assert found(young, "onset-age=gt8")
    assert found(young, "onset-age=sa4||a")
    assert not found(young, "onset-age=sa5")
    assert found({"resourceType": "Condition", "onsetRange": {"low": {"value": 5}}}, "onset-age=gt99")
    assert found({"resourceType": "Condition", "onsetRange": {"high": {"value": 5}}}, "onset-age=lt1")
    assert not found({"resourceType": "Condition", "onsetRange": {"high": {"value": "5"}}}, "onset-age=lt1")
    assert not found({"resourceType": "Condition", "onsetRange": {}}, "onset-age=lt1")


def test_another_type_of_resource_is_never_found() -> None:
    assert not compile_search("Practitioner", {})(PETER)
    assert compile_search("Patient", {})(PETER)


def test_a_visit_is_its_patients_and_not_everybodys_who_takes_part() -> None:
    visit = {
        "resourceType": "Appointment",
        "status": "booked",
        "participant": [{"actor": {"reference": "Patient/john-smith"}}, {"actor": {"reference": "Practitioner/1"}}],
    }
    search = compile_search("Appointment", {"patient": "Patient/john-smith", "status": ["booked"]})
    assert search(visit)
    assert not search(visit | {"status": "cancelled"})
    assert not found(visit, "patient=1")
    assert found(visit, "practitioner=1")


# The table.


@pytest.mark.parametrize("resource_type", [*LISTED.split(), "Device"])
def test_every_path_of_the_table_is_one(resource_type: str) -> None:
    for name, parameter in parameters_by_name(resource_type).items():
        assert parameter.name == name
        assert [compile_path(path, choices=True) for path in parameter.paths]
        if parameter.target is not None:
            assert name in ("patient", "practitioner", "location")


def test_a_type_that_is_not_listed_has_the_usual_parameters() -> None:
    usual = {"patient", "subject", "status", "identifier", "code", "date"}
    assert {name for name in parameters_of("Flag") if not name.startswith("_")} == usual
    flag = {
        "resourceType": "Flag",
        "status": "active",
        "subject": {"reference": "Patient/1"},
        "period": {"end": "2026"},
    }
    assert found(flag, [("patient", "1"), ("status", "active"), ("date", "le2026")])


def test_what_can_be_searched_is_listed_with_its_type() -> None:
    listed = parameters_of("Patient")
    assert listed["birthdate"] == "date"
    assert listed["_id"] == "token"
    assert listed["general-practitioner"] == "reference"
    assert listed["family"] == "string"
    assert parameters_of("Observation")["value-quantity"] == "quantity"
    assert parameters_of("Procedure")["instantiates-uri"] == "uri"


# What cannot be searched for.


@pytest.mark.parametrize(
    ("resource_type", "name", "value", "why"),
    [
        ("Patient", "brithdate", "2026", "'birthdate'"),
        ("Appointment", "start", "2026", "'date'"),
        ("Appointment", "minutesDuration", "30", "`where:`"),
        ("Observation", "patient.name", "x", "other resources"),
        ("Patient", "_has:Observation:patient:code", "x", "other resources"),
        ("Patient", "_count", "5", "_count"),
        ("Patient", "gender:in", "x", "takes no :in, only :not, :text, :missing"),
        ("Patient", "gender:", "x", "takes no :"),
        ("Patient", "birthdate:not", "2026", "takes no :not"),
        ("Patient", "birthdate", "tomorrow", "'tomorrow'"),
        ("Patient", "birthdate", "2026-02-30", "'2026-02-30'"),
        ("Patient", "birthdate", "ap2026", "prefix ap"),
        ("Patient", "birthdate", "gt", "a date"),
        ("Patient", "birthdate", "2026-02-03T10Z", "'2026-02-03T10Z'"),
        ("Patient", "gender", "a|b|c", "system|code"),
        ("Patient", "gender", "|", "system|code"),
        ("Patient", "gender", "male,", "comma"),
        ("Patient", "gender:missing", "yes", "true or"),
        ("Observation", "value-quantity", "5|mg", "5.4||mg"),
        ("Observation", "value-quantity", "five", "'five'"),
        ("Observation", "value-quantity", "1e999999999", "'1e999999999'"),
        ("Appointment", "patient", "Practitioner/1", "a Patient"),
        ("Patient", "gender", "", "a text"),
        ("Patient", "gender", [], "a text"),
        ("Patient", "gender", ["male", 1], "a text"),
        ("Patient", "active", True, "in quotes"),
        ("patient", "active", "true", "'patient'"),
    ],
)
def test_an_invalid_search_is_refused_with_its_reason(resource_type: str, name: str, value: Any, why: str) -> None:
    with pytest.raises(AuthorError, match=re.escape(why)):
        compile_search(resource_type, {name: value})


def test_what_shapes_a_reply_selects_nothing() -> None:
    assert not SHAPING & set(parameters_of("Patient"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals()
    | st.floats()
    | st.sampled_from(["a", "Patient/a", "2026"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["coding", "code", "system", "value", "reference", "start", "event", "low", "text", "repeat"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(["code", "subject", "effectiveTiming", "valueQuantity", "valueString", "status"], json_values)
    )
)
def test_no_resource_however_odd_breaks_a_search(resource: dict[str, Any]) -> None:
    asked = ["code=a", "code:text=a", "status=a|b", "subject=a", "patient:identifier=a", "date=2026", "date=ne2026"]
    for one in [*asked, "value-quantity=5||mg", "value-string=a", "code:missing=true"]:
        found({"resourceType": "Observation", **resource}, one)
