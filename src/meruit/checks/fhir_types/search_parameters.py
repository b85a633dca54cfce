"""The search parameters of FHIR R4: their resource, type and paths."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

import msgspec


class SearchParameterType(StrEnum):
    """How a parameter compares."""

    TOKEN = "token"  # noqa: S105 - a word of FHIR's
    STRING = "string"
    REFERENCE = "reference"
    DATE = "date"
    QUANTITY = "quantity"
    URI = "uri"


class SearchParameter(msgspec.Struct, frozen=True):
    """One search parameter of one type of resource."""

    name: str
    kind: SearchParameterType
    paths: tuple[str, ...]
    """Dotted paths, with choices of types; the values at all of them count."""
    target: str | None = None
    """The only type of resource that a reference counts for."""
    is_flag: bool = False
    """Whether it only tests that a value exists and is not false."""


# A line is a kind and its parameters. `name` alone reads the element of that name, `based-on` reads `basedOn`;
# `name=a.b|c` reads other paths; `:Type` keeps only references to that type; `?` tests whether a value exists.
_EVERY = """
    token _id=id _tag=meta.tag _security=meta.security
    date _lastUpdated=meta.lastUpdated
    uri _profile=meta.profile _source=meta.source
"""
_OTHER = """
    token identifier status code
    reference patient=patient|subject:Patient subject=subject|patient
    date date=date|authoredOn|created|recorded|recordedDate|effective|occurrence|performed|period|issued
"""
_TELECOM = """
    token telecom email=telecom[system=email] phone=telecom[system=phone]
"""
_ADDRESS = """
    token address-use=address.use
    string address address-city=address.city address-state=address.state address-country=address.country
    string address-postalcode=address.postalCode
"""
_NAMED = """
    string name family=name.family given=name.given phonetic=name
"""
_ABOUT_PATIENT = """
    token identifier status
    reference patient=subject:Patient subject encounter
"""
_OF_PATIENT = """
    token identifier status
    reference patient=patient:Patient
"""
_MEDICATION = """
    token identifier status code=medicationCodeableConcept
    reference patient=subject:Patient subject medication=medicationReference
"""
_INSTANTIATES = """
    reference instantiates-canonical
    uri instantiates-uri
"""
_SERVICE = """
    token identifier service-category service-type specialty
"""

_TABLE = {
    "Patient": f"""{_TELECOM}{_ADDRESS}{_NAMED}
        token active gender identifier language=communication.language deceased=deceased?
        date birthdate=birthDate death-date=deceasedDateTime
        reference general-practitioner link=link.other organization=managingOrganization
    """,
    "Practitioner": f"""{_TELECOM}{_ADDRESS}{_NAMED}
        token active communication gender identifier
    """,
    "PractitionerRole": f"""{_TELECOM}
        token active identifier role=code specialty
        date date=period
        reference endpoint location organization practitioner service=healthcareService
    """,
    "Organization": f"""{_ADDRESS}
        token active identifier type
        string name=name|alias phonetic=name
        reference endpoint partof=partOf
    """,
    "Location": f"""{_ADDRESS}
        token identifier operational-status status type
        string name=name|alias
        reference endpoint organization=managingOrganization partof=partOf
    """,
    "Appointment": f"""{_SERVICE}
        token appointment-type part-status=participant.status reason-code status
        date date=start
        reference actor=participant.actor based-on reason-reference slot supporting-info=supportingInformation
        reference patient=participant.actor:Patient practitioner=participant.actor:Practitioner
        reference location=participant.actor:Location
    """,
    "Schedule": f"""{_SERVICE}
        token active
        date date=planningHorizon
        reference actor
    """,
    "Slot": f"""{_SERVICE}
        token appointment-type status
        date start
        reference schedule
    """,
    "Encounter": """
        token class identifier participant-type=participant.type reason-code status type
        token special-arrangement=hospitalization.specialArrangement
        date date=period location-period=location.period
        quantity length
        reference account appointment based-on diagnosis=diagnosis.condition episode-of-care location=location.location
        reference part-of participant=participant.individual practitioner=participant.individual:Practitioner
        reference patient=subject:Patient reason-reference service-provider subject
    """,
    "Observation": f"""{_ABOUT_PATIENT}
        token category code combo-code=code|component.code component-code=component.code data-absent-reason method
        token component-data-absent-reason=component.dataAbsentReason value-concept=valueCodeableConcept
        token combo-data-absent-reason=dataAbsentReason|component.dataAbsentReason
        token component-value-concept=component.valueCodeableConcept
        token combo-value-concept=valueCodeableConcept|component.valueCodeableConcept
        string value-string=valueString|valueCodeableConcept.text
        date date=effective value-date=valueDateTime|valuePeriod
        quantity value-quantity=valueQuantity component-value-quantity=component.valueQuantity
        quantity combo-value-quantity=valueQuantity|component.valueQuantity
        reference based-on derived-from device focus has-member part-of performer specimen
    """,
    "DiagnosticReport": f"""{_ABOUT_PATIENT}
        token category code conclusion=conclusionCode
        date date=effective issued
        reference based-on media=media.link performer result results-interpreter specimen
    """,
    "Condition": """
        token body-site category clinical-status code evidence=evidence.code identifier severity stage=stage.summary
        token verification-status
        string abatement-string onset-info=onsetString
        date abatement-date=abatementDateTime|abatementPeriod onset-date=onsetDateTime|onsetPeriod recorded-date
        quantity abatement-age=abatementAge|abatementRange onset-age=onsetAge|onsetRange
        reference asserter encounter evidence-detail=evidence.detail patient=subject:Patient subject
    """,
    "Procedure": f"""{_ABOUT_PATIENT}{_INSTANTIATES}
        token category code reason-code
        date date=performed
        reference based-on location part-of performer=performer.actor reason-reference
    """,
    "AllergyIntolerance": """
        token category clinical-status code=code|reaction.substance criticality identifier severity=reaction.severity
        token manifestation=reaction.manifestation route=reaction.exposureRoute type verification-status
        date date=recordedDate last-date=lastOccurrence onset=reaction.onset
        reference asserter patient=patient:Patient recorder
    """,
    "MedicationRequest": f"""{_MEDICATION}
        token category intended-performertype=performerType intent priority
        date authoredon=authoredOn date=dosageInstruction.timing.event
        reference encounter intended-dispenser=dispenseRequest.performer intended-performer=performer requester
    """,
    "MedicationStatement": f"""{_MEDICATION}
        token category
        date effective
        reference context part-of source=informationSource
    """,
    "MedicationDispense": f"""{_MEDICATION}
        token type
        date whenhandedover=whenHandedOver whenprepared=whenPrepared
        reference context destination performer=performer.actor prescription=authorizingPrescription receiver
        reference responsibleparty=substitution.responsibleParty
    """,
    "ServiceRequest": f"""{_ABOUT_PATIENT}{_INSTANTIATES}
        token body-site category code intent order-detail performer-type priority requisition
        date authored=authoredOn occurrence
        reference based-on performer replaces requester specimen
    """,
    "Task": """
        token business-status code group-identifier identifier intent performer=performerType priority status
        date authored-on modified=lastModified period=executionPeriod
        reference based-on encounter focus owner part-of patient=for:Patient requester subject=for
    """,
    "Communication": f"""{_ABOUT_PATIENT}{_INSTANTIATES}
        token category medium
        date received sent
        reference based-on part-of recipient sender
    """,
    "CommunicationRequest": f"""{_ABOUT_PATIENT}
        token category group-identifier medium priority
        date authored=authoredOn occurrence
        reference based-on recipient replaces requester sender
    """,
    "DocumentReference": """
        token category contenttype=content.attachment.contentType event=context.event facility=context.facilityType
        token format=content.format identifier=masterIdentifier|identifier language=content.attachment.language
        token relation=relatesTo.code security-label setting=context.practiceSetting status type
        string description
        date date period=context.period
        uri location=content.attachment.url
        reference authenticator author custodian encounter=context.encounter patient=subject:Patient subject
        reference related=context.related relatesto=relatesTo.target
    """,
    "Coverage": """
        token class-type=class.type identifier status type
        string class-value=class.value dependent
        reference beneficiary patient=beneficiary:Patient payor policy-holder subscriber
    """,
    "CoverageEligibilityRequest": f"""{_OF_PATIENT}
        date created
        reference enterer facility provider
    """,
    "CoverageEligibilityResponse": f"""{_OF_PATIENT}
        token outcome
        string disposition
        date created
        reference insurer request requestor
    """,
    "Claim": f"""{_OF_PATIENT}
        token priority use
        date created
        reference care-team=careTeam.provider encounter=item.encounter enterer facility insurer payee=payee.party
        reference provider detail-udi=item.detail.udi item-udi=item.udi procedure-udi=procedure.udi
        reference subdetail-udi=item.detail.subDetail.udi
    """,
    "ClaimResponse": f"""{_OF_PATIENT}
        token outcome use
        string disposition
        date created payment-date=payment.date
        reference insurer request requestor
    """,
    "Immunization": f"""{_OF_PATIENT}
        token reason-code status-reason target-disease=protocolApplied.targetDisease vaccine-code
        string lot-number series=protocolApplied.series
        date date=occurrence reaction-date=reaction.date
        reference location manufacturer performer=performer.actor reaction=reaction.detail reason-reference
    """,
    "CarePlan": f"""{_ABOUT_PATIENT}{_INSTANTIATES}
        token activity-code=activity.detail.code category intent
        date activity-date=activity.detail.scheduled date=period
        reference activity-reference=activity.reference based-on care-team condition=addresses goal part-of
        reference performer=activity.detail.performer replaces
    """,
    "CareTeam": f"""{_ABOUT_PATIENT}
        token category
        date date=period
        reference participant=participant.member
    """,
    "Consent": f"""{_OF_PATIENT}
        token action=provision.action category purpose=provision.purpose scope security-label=provision.securityLabel
        date date=dateTime period=provision.period
        reference actor=provision.actor.reference consentor=performer data=provision.data.reference organization
        reference source-reference
    """,
    "QuestionnaireResponse": f"""{_ABOUT_PATIENT}
        date authored
        reference author based-on part-of questionnaire source
    """,
    "RelatedPerson": f"""{_TELECOM}{_ADDRESS}
        token active gender identifier relationship
        string name phonetic=name
        date birthdate=birthDate
        reference patient=patient:Patient
    """,
}


@lru_cache(maxsize=1024)
def parameters_by_name(resource_type: str) -> Mapping[str, SearchParameter]:
    """The parameters by which resources of a type can be searched, by name; for a type not listed, the usual ones."""
    table = _EVERY + _TABLE.get(resource_type, _OTHER)
    return MappingProxyType({one.name: one for one in _read(table)})


def _read(table: str) -> Iterator[SearchParameter]:
    for line in filter(None, map(str.strip, table.splitlines())):
        kind, *entries = line.split()
        for entry in entries:
            name, _, where = entry.partition("=")
            where, _, target = where.partition(":")
            paths = tuple(where.rstrip("?").split("|")) if where else (_element(name),)
            yield SearchParameter(
                name=name,
                kind=SearchParameterType(kind),
                paths=paths,
                target=target or None,
                is_flag=where.endswith("?"),
            )


def _element(name: str) -> str:
    """`based-on` is `basedOn`."""
    first, *others = name.split("-")
    return first + "".join(map(str.capitalize, others))
