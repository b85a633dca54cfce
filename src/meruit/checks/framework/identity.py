"""Whose an item is: the fields that name a patient or member, or the item's own key, in each kind of document.

Such a field selects. An item of another patient is not the one that was asked for, however well the rest fits.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meruit.checks.fhir_types.reference import REFERENCE
from meruit.checks.framework.assertion import FieldRule, PathRule
from meruit.checks.matching.matchers import Dialect, Matcher, matcher

_NAMING = frozenset({"equals", "ref", "in", "matches", "set", "any", "all", "one_of", "all_of", "contains", "says"})
"""Matchers that name whose an item is; a negation, presence or a number of values does not."""
_PERSONS = frozenset({"Patient", "RelatedPerson", "Person", "Group"})
_FHIR_ELEMENTS = frozenset({"patient", "subject", "beneficiary", "for", "individual"})
_FHIR_OWN = frozenset({"id", "identifier"})
_HL7_FIELDS = {
    "PID": frozenset({"2", "3", "4", "18", "19"}),
    "MRG": frozenset({"1", "2", "3", "4"}),
    "IN1": frozenset({"36", "49"}),
}
_HL7_PATH = re.compile(r"([A-Z][A-Z0-9]{2})(?:\[[^]]*\])*-([0-9]+)(?![0-9])")
_X12_PATH = re.compile(r"(?:HL\[([^]]*)\]/)?([A-Z0-9]{2,3})((?:\[[^]]*\])*)\.([0-9]+)(?![0-9])")
_X12_PERSONS = frozenset({"1=IL", "1=QC", "1=74"})
_X12_LOOPS = frozenset({"22", "23", "PT"})
_X12_REFERENCES = frozenset({"1=0F", "1=1W", "1=EJ", "1=SY", "1=Y4"})
_ROW_NAMES = frozenset(
    """
    beneficiary beneficiaryid medicalrecordnumber member memberid membernumber mrn patient patientid patientmrn
    patientnumber patientreference policynumber subscriber subscriberid
    """.split()  # noqa: SIM905 - words are easier to read than quotes
)


def fhir_identity(resource: str, path: str, rule: FieldRule) -> Sequence[PathRule]:
    """A resource's patient, its own id, and a patient's identifiers; elsewhere the patients that a matcher names."""
    if not _is_naming(rule.matcher):
        return ()
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    if first in _FHIR_ELEMENTS or path == "id" or (resource in _PERSONS and first in _FHIR_OWN):
        return [(path, rule)]
    # A list of participants has practitioners too: only the patients in it decide.
    persons = [one for one in _texts(rule.matcher.expected) if _is_person(one)]
    if rule.matcher.op in ("ref", "equals", "in", "one_of", "any"):
        return [(path, rule)] if persons else []
    return [(path, FieldRule(matcher({"any": {"ref": one}}, Dialect.JSON))) for one in persons]


def hl7_identity(path: str, rule: FieldRule) -> Sequence[PathRule]:
    """A message's patient identifiers: PID-3 and its kin, merged identifiers, and policy numbers."""
    found = _HL7_PATH.match(path)
    is_whose = found is not None and found[2] in _HL7_FIELDS.get(found[1], ())
    return [(path, rule)] if is_whose and _is_naming(rule.matcher) else []


def x12_identity(path: str, rule: FieldRule) -> Sequence[PathRule]:
    """The identifiers in the loops of subscriber, member and patient, and a claim's own number."""
    found = _X12_PATH.fullmatch(path)
    if found is None or not _is_naming(rule.matcher):
        return []
    loop, segment, qualifiers, element = found[1], found[2], {*re.findall(r"\[([^]]*)\]", found[3])}, found[4]
    is_person = bool(qualifiers & _X12_PERSONS) or (loop in _X12_LOOPS and not qualifiers)
    is_whose = (
        (segment == "NM1" and element == "9" and is_person)
        or (segment == "REF" and element == "2" and bool(qualifiers & _X12_REFERENCES))
        or (segment in ("CLM", "CLP") and element == "1" and not qualifiers)
    )
    return [(path, rule)] if is_whose else []


def row_identity(path: str, rule: FieldRule) -> Sequence[PathRule]:
    """A row's own key, and the fields that are named after a patient or member."""
    steps = [step for step in path.split(".") if not step.isdigit()]
    if "[" in path or not steps or not _is_naming(rule.matcher):
        return []
    names = {_plain_name(steps[-1]), _plain_name("".join(steps[-2:]))}
    return [(path, rule)] if names & _ROW_NAMES or path in ("id", "key") else []


def _is_naming(asked: Matcher) -> bool:
    return asked.op in _NAMING and asked.expected is not None


def _plain_name(step: str) -> str:
    return step.replace("_", "").replace("-", "").casefold()


def _is_person(text: str) -> bool:
    found = REFERENCE.fullmatch(text)
    return found is not None and found[2].partition("/")[0] in _PERSONS


# Any: what an author wrote in a matcher.
def _texts(written: Any) -> Iterator[str]:
    match written:
        case str():
            yield str(written)
        case dict():
            for name, one in written.items():
                if name in _NAMING or name == "reference":
                    yield from _texts(one)
        case list() | tuple():
            for one in written:
                yield from _texts(one)
        case _:
            return
