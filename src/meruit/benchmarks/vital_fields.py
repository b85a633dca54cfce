"""Fields whose mistakes harm a patient: whose it is, which code, how much, and in which unit."""

import re
from decimal import Decimal
from enum import StrEnum
from typing import Any

from meruit.model.environment import SourceKind


class VitalField(StrEnum):
    """What a field is about; criteria must notice a mistake in it."""

    IDENTITY = "identity"
    CODE = "code"
    QUANTITY = "quantity"
    UNIT = "unit"


_OF_PATIENT = frozenset({"patient", "subject", "beneficiary", "for", "individual"})
_ROW_IDENTITY = frozenset({"mrn", "member", "memberid", "patient", "patientid", "patientmrn", "subscriber"})
_ROW_CODES = frozenset({"cpt", "cptcode", "hcpcs", "icd", "icd10", "diagnosis", "ndc", "loinc", "snomed", "rxnorm"})
_UNITS = frozenset({"unit", "units", "uom"})
_TECHNICAL = frozenset({"size", "seq", "number", "index", "version", "position", "sequence", "total"})
"""Numbers that systems count by themselves."""
_PERSON = re.compile(r"(?:https?://\S*/)?(?:Patient|RelatedPerson|Person|Group)/\S+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BY_SEGMENT: dict[SourceKind, dict[str, VitalField]] = {
    SourceKind.HL7: {
        **dict.fromkeys(("PID-2", "PID-3", "PID-4", "PID-18", "PID-19", "MRG-1"), VitalField.IDENTITY),
        **dict.fromkeys(("OBX-3", "OBR-4", "DG1-3", "PR1-3", "RXE-2", "RXO-1", "AL1-3"), VitalField.CODE),
        **dict.fromkeys(("OBX-5", "RXE-3", "RXO-2"), VitalField.QUANTITY),
        **dict.fromkeys(("OBX-6", "RXE-5", "RXO-4"), VitalField.UNIT),
    },
    SourceKind.X12: {
        **dict.fromkeys(("NM1*IL-9", "NM1*QC-9", "REF*0F-2", "REF*EJ-2", "CLM-1", "CLP-1"), VitalField.IDENTITY),
        **dict.fromkeys(("SV1-1", "SV2-2", "SVC-1", "HI-1"), VitalField.CODE),
        **dict.fromkeys(("CLM-2", "SV1-2", "SV1-4", "AMT-2"), VitalField.QUANTITY),
        "SV1-3": VitalField.UNIT,
    },
}


# Any: a value of a JSON document.
def vital_json_field(path: str, value: Any) -> VitalField | None:
    """What a field of a resource or row is about, by its path; None for any other."""
    names = _NAME.findall(path)
    last, parent = names[-1], names[-2] if len(names) > 1 else ""
    plain = last.replace("_", "").replace("-", "").casefold()
    is_amount = parent.endswith("Quantity") or parent in ("quantity", "dose", "low", "high", "numerator", "denominator")
    if plain in _UNITS or (is_amount and last in ("code", "system")):
        return VitalField.UNIT
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return None if plain in _TECHNICAL else VitalField.QUANTITY
    if isinstance(value, str) and (plain in _ROW_IDENTITY or _PERSON.fullmatch(value)):
        return VitalField.IDENTITY
    if names[0] in _OF_PATIENT and last in ("reference", "value"):
        return VitalField.IDENTITY
    return VitalField.CODE if plain in _ROW_CODES or ("coding" in names and last in ("code", "system")) else None


def vital_json_part(name: str, value: Any) -> VitalField | None:
    """What a whole top-level field is about: what is missing when it is left out."""
    if name in _OF_PATIENT:
        return VitalField.IDENTITY
    match value:
        case {"coding": _}:
            return VitalField.CODE
        case {"value": _}:
            return VitalField.QUANTITY
        case dict() | list():
            return None
        case _:
            return vital_json_field(name, value)


def vital_segment_field(kind: SourceKind, fields: list[str], place: int) -> VitalField | None:
    """What an element of a segment is about; `fields` begins with the segment's name."""
    known = _BY_SEGMENT.get(kind, {})
    qualifier = fields[1] if len(fields) > 1 else ""
    return known.get(f"{fields[0]}-{place}") or known.get(f"{fields[0]}*{qualifier}-{place}")
