"""Resources of FHIR R4 as a playground keeps them: each with its id, its version and its time."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from meruit.errors import FhirRefusal, PlaygroundFull, TooDeep
from meruit.model.environment import SourceKind
from meruit.playground.fhir.json import Json, write
from meruit.playground.state import ItemVersion, PlaygroundState
from meruit.suggestions import nearest

FHIR = SourceKind.FHIR
_TYPES = """
Account ActivityDefinition AdverseEvent AllergyIntolerance Appointment AppointmentResponse AuditEvent Basic Binary
BiologicallyDerivedProduct BodyStructure Bundle CapabilityStatement CarePlan CareTeam CatalogEntry ChargeItem
ChargeItemDefinition Claim ClaimResponse ClinicalImpression CodeSystem Communication CommunicationRequest
CompartmentDefinition Composition ConceptMap Condition Consent Contract Coverage CoverageEligibilityRequest
CoverageEligibilityResponse DetectedIssue Device DeviceDefinition DeviceMetric DeviceRequest DeviceUseStatement
DiagnosticReport DocumentManifest DocumentReference EffectEvidenceSynthesis Encounter Endpoint EnrollmentRequest
EnrollmentResponse EpisodeOfCare EventDefinition Evidence EvidenceVariable ExampleScenario ExplanationOfBenefit
FamilyMemberHistory Flag Goal GraphDefinition Group GuidanceResponse HealthcareService ImagingStudy Immunization
ImmunizationEvaluation ImmunizationRecommendation ImplementationGuide InsurancePlan Invoice Library Linkage List
Location Measure MeasureReport Media Medication MedicationAdministration MedicationDispense MedicationKnowledge
MedicationRequest MedicationStatement MedicinalProduct MedicinalProductAuthorization MedicinalProductContraindication
MedicinalProductIndication MedicinalProductIngredient MedicinalProductInteraction MedicinalProductManufactured
MedicinalProductPackaged MedicinalProductPharmaceutical MedicinalProductUndesirableEffect MessageDefinition
MessageHeader MolecularSequence NamingSystem NutritionOrder Observation ObservationDefinition OperationDefinition
Organization OrganizationAffiliation Patient PaymentNotice PaymentReconciliation Person PlanDefinition Practitioner
PractitionerRole Procedure Provenance Questionnaire QuestionnaireResponse RelatedPerson RequestGroup
ResearchDefinition ResearchElementDefinition ResearchStudy ResearchSubject RiskAssessment RiskEvidenceSynthesis
Schedule SearchParameter ServiceRequest Slot Specimen SpecimenDefinition StructureDefinition StructureMap Subscription
Substance SubstanceNucleicAcid SubstancePolymer SubstanceProtein SubstanceReferenceInformation
SubstanceSourceMaterial SubstanceSpecification SupplyDelivery SupplyRequest Task TerminologyCapabilities TestReport
TestScript ValueSet VerificationResult VisionPrescription
"""
TYPES = frozenset(_TYPES.split())
"""The types that can be stored: every type of R4 but OperationOutcome and Parameters."""
IDENTITY = re.compile(r"[A-Za-z0-9\-.]{1,64}")
"""A FHIR id."""
MAX_RESOURCE_BYTES = 16 * 1024 * 1024
"""Of one stored resource."""


class StoredResource(msgspec.Struct, frozen=True):
    """A resource as it is stored now."""

    key: str
    version: str
    at: str
    content: bytes
    created: bool
    """Whether it is new."""


def outcome(severity: str, code: str, diagnostics: str, *, expression: str | None = None) -> Json:
    """Build an OperationOutcome of one issue."""
    issue: Json = {"severity": severity, "code": code, "diagnostics": diagnostics}
    if expression is not None:
        issue["expression"] = [expression]
    return {"resourceType": "OperationOutcome", "issue": [issue]}


def refusal_outcome(refusal: FhirRefusal) -> Json:
    """Build the OperationOutcome of a refused request."""
    return outcome("error", refusal.code, refusal.diagnostics, expression=refusal.expression)


def require_type(name: str) -> str:
    """Return the type; raises FhirRefusal if R4 has none of that name."""
    if name not in TYPES:
        raise FhirRefusal(404, "not-supported", f"{name!r} is not a resource type of FHIR R4{nearest(name, TYPES)}")
    return name


# Any: a client may send any JSON.
def require_resource(resource: Any, kind: str, identity: str | None = None) -> Json:
    """Return the resource of a request; raises FhirRefusal unless it is of that type and, if given, of that id."""
    if not isinstance(resource, dict):
        raise FhirRefusal(400, "structure", "send one JSON object with a resourceType")
    found = resource.get("resourceType")
    if found != kind:
        raise FhirRefusal(400, "invalid", f"the resource says resourceType {found!r}, the address {kind!r}")
    if not isinstance(resource.get("meta", {}), dict):
        raise FhirRefusal(400, "structure", "meta must be an object", expression=f"{kind}.meta")
    if identity is not None and resource.get("id") != identity:
        raise FhirRefusal(
            400,
            "invalid",
            f"the resource says id {resource.get('id')!r}, the address {identity!r}",
            expression=f"{kind}.id",
        )
    return resource


def read_current(state: PlaygroundState, key: str) -> ItemVersion:
    """Return a resource; raises FhirRefusal if it never existed or was deleted."""
    found = state.latest(FHIR, key)
    if found is None:
        raise FhirRefusal(404, "not-found", f"there is no {key}")
    if found.content is None:
        raise FhirRefusal(410, "deleted", f"{key} was deleted")
    return found


def has_version(tags: str, version: str) -> bool:
    """Return whether a list of entity tags, as `W/"3"`, names the version."""
    named = [tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")]
    return "*" in named or version in named


def require_version(found: ItemVersion | None, if_match: str | None) -> None:
    """Raise FhirRefusal unless the version that a client expects is the current one."""
    if if_match is None:
        return
    standing = found.version if found is not None and found.content is not None else None
    if standing is None or not has_version(if_match, standing):
        stands = f"version {standing} stands" if standing else "it does not exist"
        raise FhirRefusal(412, "conflict", f"the request is for version {if_match}, and {stands}; read it again")


def store_resource(
    state: PlaygroundState, key: str, resource: Mapping[str, Any], *, noted: Mapping[str, Any] | None = None
) -> StoredResource:
    """Store a resource as the next version of its key."""
    kind, _, identity = key.partition("/")
    if not IDENTITY.fullmatch(identity):
        raise FhirRefusal(
            400, "value", f"{identity[:80]!r} is not a valid id; use A-Z, a-z, 0-9, - and ., at most 64 characters"
        )
    with state.change():
        last = state.latest(FHIR, key)
        version, at = _next(last), state.moment()
        meta = {**resource.get("meta", {}), "versionId": version, "lastUpdated": at}
        try:
            content = write({"resourceType": kind, "id": identity, "meta": meta, **_rest(resource)})
        except TooDeep as problem:
            raise FhirRefusal(400, "structure", f"the resource is {problem}") from None
        if len(content) > MAX_RESOURCE_BYTES:
            raise FhirRefusal(413, "too-long", f"a resource may have {MAX_RESOURCE_BYTES:,} bytes")
        created = last is None or last.content is None
        event = "fhir_create" if created else "fhir_update"
        state.put(FHIR, key, content, version=version, event=event, noted=noted)
        return StoredResource(key=key, version=version, at=at, content=content, created=created)


def delete(state: PlaygroundState, key: str, *, noted: Mapping[str, Any] | None = None) -> str | None:
    """Delete a resource; returns the version of the deletion, None if it does not exist."""
    with state.change():
        last = state.latest(FHIR, key)
        if last is None or last.content is None:
            return None
        state.remove(FHIR, key, event="fhir_delete", version=_next(last), noted=noted)
        return _next(last)


def storage_refusal(full: PlaygroundFull) -> FhirRefusal:
    """Build the refusal of what does not fit."""
    return FhirRefusal(507, "no-store", str(full))


def _next(last: ItemVersion | None) -> str:
    return str(int(last.version) + 1) if last is not None else "1"


def _rest(resource: Mapping[str, Any]) -> Json:
    return {name: value for name, value in resource.items() if name not in ("resourceType", "id", "meta")}
