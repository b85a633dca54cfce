"""The elements of FHIR R4 resources, to refuse a misspelled path when a file is read.

Resources that are not listed are not checked. A line is a type and its elements; `name:Type` has elements of its own,
`name:*` has any.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from meruit.checks.formats.json_path import CHOICE_TYPES
from meruit.suggestions import nearest

_EVERYWHERE = frozenset(
    {
        *("id", "extension", "modifierExtension", "resourceType", "meta", "implicitRules"),
        *("language", "text", "contained"),
    }
)
_ANY = "*"

_TABLE = """
    Address = city country district line period:Period postalCode state text type use
    Age = code comparator system unit value
    AllergyIntolerance = asserter:Reference category clinicalStatus:CodeableConcept code:CodeableConcept criticality
      encounter:Reference identifier:Identifier lastOccurrence note:Annotation onsetAge:Age onsetDateTime
      onsetPeriod:Period onsetRange:Range onsetString patient:Reference reaction:AllergyIntoleranceReaction
      recordedDate recorder:Reference type verificationStatus:CodeableConcept
    AllergyIntoleranceReaction = description exposureRoute:CodeableConcept manifestation:CodeableConcept
      note:Annotation onset severity substance:CodeableConcept
    Annotation = authorReference:Reference authorString text time
    Appointment = appointmentType:CodeableConcept basedOn:Reference cancelationReason:CodeableConcept comment
      created description end identifier:Identifier minutesDuration participant:AppointmentParticipant
      patientInstruction priority reasonCode:CodeableConcept reasonReference:Reference requestedPeriod:Period
      serviceCategory:CodeableConcept serviceType:CodeableConcept slot:Reference specialty:CodeableConcept start
      status supportingInformation:Reference
    AppointmentParticipant = actor:Reference period:Period required status type:CodeableConcept
    AppointmentResponse = actor:Reference appointment:Reference comment end identifier:Identifier participantStatus
      participantType:CodeableConcept start
    Attachment = contentType creation data hash size title url
    CarePlan = activity:CarePlanActivity addresses:Reference author:Reference basedOn:Reference careTeam:Reference
      category:CodeableConcept contributor:Reference created description encounter:Reference goal:Reference
      identifier:Identifier instantiatesCanonical instantiatesUri intent note:Annotation partOf:Reference
      period:Period replaces:Reference status subject:Reference supportingInfo:Reference title
    CarePlanActivity = detail:CarePlanActivityDetail outcomeCodeableConcept:CodeableConcept
      outcomeReference:Reference progress:Annotation reference:Reference
    CarePlanActivityDetail = code:CodeableConcept dailyAmount:Quantity description doNotPerform goal:Reference
      instantiatesCanonical instantiatesUri kind location:Reference performer:Reference
      productCodeableConcept:CodeableConcept productReference:Reference quantity:Quantity reasonCode:CodeableConcept
      reasonReference:Reference scheduledPeriod:Period scheduledString scheduledTiming:Timing status
      statusReason:CodeableConcept
    Claim = accident:ClaimAccident billablePeriod:Period careTeam:ClaimCareTeam created diagnosis:ClaimDiagnosis
      enterer:Reference facility:Reference fundsReserve:CodeableConcept identifier:Identifier
      insurance:ClaimInsurance insurer:Reference item:ClaimItem originalPrescription:Reference patient:Reference
      payee:ClaimPayee prescription:Reference priority:CodeableConcept procedure:ClaimProcedure provider:Reference
      referral:Reference related:ClaimRelated status subType:CodeableConcept supportingInfo:ClaimSupportingInfo
      total:Money type:CodeableConcept use
    ClaimAccident = date locationAddress:Address locationReference:Reference type:CodeableConcept
    ClaimCareTeam = provider:Reference qualification:CodeableConcept responsible role:CodeableConcept sequence
    ClaimDiagnosis = diagnosisCodeableConcept:CodeableConcept diagnosisReference:Reference
      onAdmission:CodeableConcept packageCode:CodeableConcept sequence type:CodeableConcept
    ClaimInsurance = businessArrangement claimResponse:Reference coverage:Reference focal identifier:Identifier
      preAuthRef sequence
    ClaimItem = bodySite:CodeableConcept careTeamSequence category:CodeableConcept detail:ClaimItemDetail
      diagnosisSequence encounter:Reference factor informationSequence locationAddress:Address
      locationCodeableConcept:CodeableConcept locationReference:Reference modifier:CodeableConcept net:Money
      procedureSequence productOrService:CodeableConcept programCode:CodeableConcept quantity:Quantity
      revenue:CodeableConcept sequence servicedDate servicedPeriod:Period subSite:CodeableConcept udi:Reference
      unitPrice:Money
    ClaimItemDetail = category:CodeableConcept factor modifier:CodeableConcept net:Money
      productOrService:CodeableConcept programCode:CodeableConcept quantity:Quantity revenue:CodeableConcept
      sequence subDetail:ClaimItemDetailSubDetail udi:Reference unitPrice:Money
    ClaimItemDetailSubDetail = category:CodeableConcept factor modifier:CodeableConcept net:Money
      productOrService:CodeableConcept programCode:CodeableConcept quantity:Quantity revenue:CodeableConcept
      sequence udi:Reference unitPrice:Money
    ClaimPayee = party:Reference type:CodeableConcept
    ClaimProcedure = date procedureCodeableConcept:CodeableConcept procedureReference:Reference sequence
      type:CodeableConcept udi:Reference
    ClaimRelated = claim:Reference reference:Identifier relationship:CodeableConcept
    ClaimSupportingInfo = category:CodeableConcept code:CodeableConcept reason:CodeableConcept sequence timingDate
      timingPeriod:Period valueAttachment:Attachment valueBoolean valueQuantity:Quantity valueReference:Reference
      valueString
    CodeableConcept = coding:Coding text
    Coding = code display system userSelected version
    Communication = about:Reference basedOn:Reference category:CodeableConcept encounter:Reference
      identifier:Identifier inResponseTo:Reference instantiatesCanonical instantiatesUri medium:CodeableConcept
      note:Annotation partOf:Reference payload:CommunicationPayload priority reasonCode:CodeableConcept
      reasonReference:Reference received recipient:Reference sender:Reference sent status
      statusReason:CodeableConcept subject:Reference topic:CodeableConcept
    CommunicationPayload = contentAttachment:Attachment contentReference:Reference contentString
    CommunicationRequest = about:Reference authoredOn basedOn:Reference category:CodeableConcept doNotPerform
      encounter:Reference groupIdentifier:Identifier identifier:Identifier medium:CodeableConcept note:Annotation
      occurrenceDateTime occurrencePeriod:Period payload:CommunicationRequestPayload priority
      reasonCode:CodeableConcept reasonReference:Reference recipient:Reference replaces:Reference
      requester:Reference sender:Reference status statusReason:CodeableConcept subject:Reference
    CommunicationRequestPayload = contentAttachment:Attachment contentReference:Reference contentString
    Condition = abatementAge:Age abatementDateTime abatementPeriod:Period abatementRange:Range abatementString
      asserter:Reference bodySite:CodeableConcept category:CodeableConcept clinicalStatus:CodeableConcept
      code:CodeableConcept encounter:Reference evidence:ConditionEvidence identifier:Identifier note:Annotation
      onsetAge:Age onsetDateTime onsetPeriod:Period onsetRange:Range onsetString recordedDate recorder:Reference
      severity:CodeableConcept stage:ConditionStage subject:Reference verificationStatus:CodeableConcept
    ConditionEvidence = code:CodeableConcept detail:Reference
    ConditionStage = assessment:Reference summary:CodeableConcept type:CodeableConcept
    ContactDetail = name telecom:ContactPoint
    ContactPoint = period:Period rank system use value
    Contributor = contact:ContactDetail name type
    Count = code comparator system unit value
    Coverage = beneficiary:Reference class:CoverageClass contract:Reference
      costToBeneficiary:CoverageCostToBeneficiary dependent identifier:Identifier network order payor:Reference
      period:Period policyHolder:Reference relationship:CodeableConcept status subrogation subscriber:Reference
      subscriberId type:CodeableConcept
    CoverageClass = name type:CodeableConcept value
    CoverageCostToBeneficiary = exception:CoverageCostToBeneficiaryException type:CodeableConcept valueMoney:Money
      valueQuantity:Quantity
    CoverageCostToBeneficiaryException = period:Period type:CodeableConcept
    CoverageEligibilityRequest = created enterer:Reference facility:Reference identifier:Identifier
      insurance:CoverageEligibilityRequestInsurance insurer:Reference item:CoverageEligibilityRequestItem
      patient:Reference priority:CodeableConcept provider:Reference purpose servicedDate servicedPeriod:Period
      status supportingInfo:CoverageEligibilityRequestSupportingInfo
    CoverageEligibilityRequestInsurance = businessArrangement coverage:Reference focal
    CoverageEligibilityRequestItem = category:CodeableConcept detail:Reference
      diagnosis:CoverageEligibilityRequestItemDiagnosis facility:Reference modifier:CodeableConcept
      productOrService:CodeableConcept provider:Reference quantity:Quantity supportingInfoSequence unitPrice:Money
    CoverageEligibilityRequestItemDiagnosis = diagnosisCodeableConcept:CodeableConcept diagnosisReference:Reference
    CoverageEligibilityRequestSupportingInfo = appliesToAll information:Reference sequence
    DataRequirement = codeFilter:DataRequirementCodeFilter dateFilter:DataRequirementDateFilter limit mustSupport
      profile sort:DataRequirementSort subjectCodeableConcept:CodeableConcept subjectReference:Reference type
    DataRequirementCodeFilter = code:Coding path searchParam valueSet
    DataRequirementDateFilter = path searchParam valueDateTime valueDuration:Duration valuePeriod:Period
    DataRequirementSort = direction path
    DeviceRequest = authoredOn basedOn:Reference codeCodeableConcept:CodeableConcept codeReference:Reference
      encounter:Reference groupIdentifier:Identifier identifier:Identifier instantiatesCanonical instantiatesUri
      insurance:Reference intent note:Annotation occurrenceDateTime occurrencePeriod:Period occurrenceTiming:Timing
      parameter:DeviceRequestParameter performer:Reference performerType:CodeableConcept priorRequest:Reference
      priority reasonCode:CodeableConcept reasonReference:Reference relevantHistory:Reference requester:Reference
      status subject:Reference supportingInfo:Reference
    DeviceRequestParameter = code:CodeableConcept valueBoolean valueCodeableConcept:CodeableConcept
      valueQuantity:Quantity valueRange:Range
    DiagnosticReport = basedOn:Reference category:CodeableConcept code:CodeableConcept conclusion
      conclusionCode:CodeableConcept effectiveDateTime effectivePeriod:Period encounter:Reference
      identifier:Identifier imagingStudy:Reference issued media:DiagnosticReportMedia performer:Reference
      presentedForm:Attachment result:Reference resultsInterpreter:Reference specimen:Reference status
      subject:Reference
    DiagnosticReportMedia = comment link:Reference
    Distance = code comparator system unit value
    DocumentReference = authenticator:Reference author:Reference category:CodeableConcept
      content:DocumentReferenceContent context:DocumentReferenceContext custodian:Reference date description
      docStatus identifier:Identifier masterIdentifier:Identifier relatesTo:DocumentReferenceRelatesTo
      securityLabel:CodeableConcept status subject:Reference type:CodeableConcept
    DocumentReferenceContent = attachment:Attachment format:Coding
    DocumentReferenceContext = encounter:Reference event:CodeableConcept facilityType:CodeableConcept period:Period
      practiceSetting:CodeableConcept related:Reference sourcePatientInfo:Reference
    DocumentReferenceRelatesTo = code target:Reference
    Dosage = additionalInstruction:CodeableConcept asNeededBoolean asNeededCodeableConcept:CodeableConcept
      doseAndRate:DosageDoseAndRate maxDosePerAdministration:Quantity maxDosePerLifetime:Quantity
      maxDosePerPeriod:Ratio method:CodeableConcept patientInstruction route:CodeableConcept sequence
      site:CodeableConcept text timing:Timing
    DosageDoseAndRate = doseQuantity:Quantity doseRange:Range rateQuantity:Quantity rateRange:Range rateRatio:Ratio
      type:CodeableConcept
    Duration = code comparator system unit value
    Encounter = account:Reference appointment:Reference basedOn:Reference class:Coding
      classHistory:EncounterClassHistory diagnosis:EncounterDiagnosis episodeOfCare:Reference
      hospitalization:EncounterHospitalization identifier:Identifier length:Duration location:EncounterLocation
      partOf:Reference participant:EncounterParticipant period:Period priority:CodeableConcept
      reasonCode:CodeableConcept reasonReference:Reference serviceProvider:Reference serviceType:CodeableConcept
      status statusHistory:EncounterStatusHistory subject:Reference type:CodeableConcept
    EncounterClassHistory = class:Coding period:Period
    EncounterDiagnosis = condition:Reference rank use:CodeableConcept
    EncounterHospitalization = admitSource:CodeableConcept destination:Reference dietPreference:CodeableConcept
      dischargeDisposition:CodeableConcept origin:Reference preAdmissionIdentifier:Identifier
      reAdmission:CodeableConcept specialArrangement:CodeableConcept specialCourtesy:CodeableConcept
    EncounterLocation = location:Reference period:Period physicalType:CodeableConcept status
    EncounterParticipant = individual:Reference period:Period type:CodeableConcept
    EncounterStatusHistory = period:Period status
    Expression = description expression name reference
    Flag = author:Reference category:CodeableConcept code:CodeableConcept encounter:Reference identifier:Identifier
      period:Period status subject:Reference
    HumanName = family given period:Period prefix suffix text use
    Identifier = assigner:Reference period:Period system type:CodeableConcept use value
    Immunization = doseQuantity:Quantity education:ImmunizationEducation encounter:Reference expirationDate
      fundingSource:CodeableConcept identifier:Identifier isSubpotent location:Reference lotNumber
      manufacturer:Reference note:Annotation occurrenceDateTime occurrenceString patient:Reference
      performer:ImmunizationPerformer primarySource programEligibility:CodeableConcept
      protocolApplied:ImmunizationProtocolApplied reaction:ImmunizationReaction reasonCode:CodeableConcept
      reasonReference:Reference recorded reportOrigin:CodeableConcept route:CodeableConcept site:CodeableConcept
      status statusReason:CodeableConcept subpotentReason:CodeableConcept vaccineCode:CodeableConcept
    ImmunizationEducation = documentType presentationDate publicationDate reference
    ImmunizationPerformer = actor:Reference function:CodeableConcept
    ImmunizationProtocolApplied = authority:Reference doseNumberPositiveInt doseNumberString series
      seriesDosesPositiveInt seriesDosesString targetDisease:CodeableConcept
    ImmunizationReaction = date detail:Reference reported
    Location = address:Address alias availabilityExceptions description endpoint:Reference
      hoursOfOperation:LocationHoursOfOperation identifier:Identifier managingOrganization:Reference mode name
      operationalStatus:Coding partOf:Reference physicalType:CodeableConcept position:LocationPosition status
      telecom:ContactPoint type:CodeableConcept
    LocationHoursOfOperation = allDay closingTime daysOfWeek openingTime
    LocationPosition = altitude latitude longitude
    Medication = amount:Ratio batch:MedicationBatch code:CodeableConcept form:CodeableConcept identifier:Identifier
      ingredient:MedicationIngredient manufacturer:Reference status
    MedicationAdministration = category:CodeableConcept context:Reference device:Reference
      dosage:MedicationAdministrationDosage effectiveDateTime effectivePeriod:Period eventHistory:Reference
      identifier:Identifier instantiates medicationCodeableConcept:CodeableConcept medicationReference:Reference
      note:Annotation partOf:Reference performer:MedicationAdministrationPerformer reasonCode:CodeableConcept
      reasonReference:Reference request:Reference status statusReason:CodeableConcept subject:Reference
      supportingInformation:Reference
    MedicationAdministrationDosage = dose:Quantity method:CodeableConcept rateQuantity:Quantity rateRatio:Ratio
      route:CodeableConcept site:CodeableConcept text
    MedicationAdministrationPerformer = actor:Reference function:CodeableConcept
    MedicationBatch = expirationDate lotNumber
    MedicationDispense = authorizingPrescription:Reference category:CodeableConcept context:Reference
      daysSupply:Quantity destination:Reference detectedIssue:Reference dosageInstruction:Dosage
      eventHistory:Reference identifier:Identifier location:Reference medicationCodeableConcept:CodeableConcept
      medicationReference:Reference note:Annotation partOf:Reference performer:MedicationDispensePerformer
      quantity:Quantity receiver:Reference status statusReasonCodeableConcept:CodeableConcept
      statusReasonReference:Reference subject:Reference substitution:MedicationDispenseSubstitution
      supportingInformation:Reference type:CodeableConcept whenHandedOver whenPrepared
    MedicationDispensePerformer = actor:Reference function:CodeableConcept
    MedicationDispenseSubstitution = reason:CodeableConcept responsibleParty:Reference type:CodeableConcept
      wasSubstituted
    MedicationIngredient = isActive itemCodeableConcept:CodeableConcept itemReference:Reference strength:Ratio
    MedicationRequest = authoredOn basedOn:Reference category:CodeableConcept courseOfTherapyType:CodeableConcept
      detectedIssue:Reference dispenseRequest:MedicationRequestDispenseRequest doNotPerform dosageInstruction:Dosage
      encounter:Reference eventHistory:Reference groupIdentifier:Identifier identifier:Identifier
      instantiatesCanonical instantiatesUri insurance:Reference intent medicationCodeableConcept:CodeableConcept
      medicationReference:Reference note:Annotation performer:Reference performerType:CodeableConcept
      priorPrescription:Reference priority reasonCode:CodeableConcept reasonReference:Reference recorder:Reference
      reportedBoolean reportedReference:Reference requester:Reference status statusReason:CodeableConcept
      subject:Reference substitution:MedicationRequestSubstitution supportingInformation:Reference
    MedicationRequestDispenseRequest = dispenseInterval:Duration expectedSupplyDuration:Duration
      initialFill:MedicationRequestDispenseRequestInitialFill numberOfRepeatsAllowed performer:Reference
      quantity:Quantity validityPeriod:Period
    MedicationRequestDispenseRequestInitialFill = duration:Duration quantity:Quantity
    MedicationRequestSubstitution = allowedBoolean allowedCodeableConcept:CodeableConcept reason:CodeableConcept
    MedicationStatement = basedOn:Reference category:CodeableConcept context:Reference dateAsserted
      derivedFrom:Reference dosage:Dosage effectiveDateTime effectivePeriod:Period identifier:Identifier
      informationSource:Reference medicationCodeableConcept:CodeableConcept medicationReference:Reference
      note:Annotation partOf:Reference reasonCode:CodeableConcept reasonReference:Reference status
      statusReason:CodeableConcept subject:Reference
    Money = currency value
    Observation = basedOn:Reference bodySite:CodeableConcept category:CodeableConcept code:CodeableConcept
      component:ObservationComponent dataAbsentReason:CodeableConcept derivedFrom:Reference device:Reference
      effectiveDateTime effectiveInstant effectivePeriod:Period effectiveTiming:Timing encounter:Reference
      focus:Reference hasMember:Reference identifier:Identifier interpretation:CodeableConcept issued
      method:CodeableConcept note:Annotation partOf:Reference performer:Reference
      referenceRange:ObservationReferenceRange specimen:Reference status subject:Reference valueBoolean
      valueCodeableConcept:CodeableConcept valueDateTime valueInteger valuePeriod:Period valueQuantity:Quantity
      valueRange:Range valueRatio:Ratio valueSampledData:SampledData valueString valueTime
    ObservationComponent = code:CodeableConcept dataAbsentReason:CodeableConcept interpretation:CodeableConcept
      referenceRange:ObservationReferenceRange valueBoolean valueCodeableConcept:CodeableConcept valueDateTime
      valueInteger valuePeriod:Period valueQuantity:Quantity valueRange:Range valueRatio:Ratio
      valueSampledData:SampledData valueString valueTime
    ObservationReferenceRange = age:Range appliesTo:CodeableConcept high:Quantity low:Quantity text
      type:CodeableConcept
    Organization = active address:Address alias contact:OrganizationContact endpoint:Reference identifier:Identifier
      name partOf:Reference telecom:ContactPoint type:CodeableConcept
    OrganizationContact = address:Address name:HumanName purpose:CodeableConcept telecom:ContactPoint
    ParameterDefinition = documentation max min name profile type use
    Patient = active address:Address birthDate communication:PatientCommunication contact:PatientContact
      deceasedBoolean deceasedDateTime gender generalPractitioner:Reference identifier:Identifier link:PatientLink
      managingOrganization:Reference maritalStatus:CodeableConcept multipleBirthBoolean multipleBirthInteger
      name:HumanName photo:Attachment telecom:ContactPoint
    PatientCommunication = preferred
    PatientContact = address:Address gender name:HumanName organization:Reference period:Period
      relationship:CodeableConcept telecom:ContactPoint
    PatientLink = other:Reference type
    Period = end start
    Practitioner = active address:Address birthDate communication:CodeableConcept gender identifier:Identifier
      name:HumanName photo:Attachment qualification:PractitionerQualification telecom:ContactPoint
    PractitionerQualification = code:CodeableConcept identifier:Identifier issuer:Reference period:Period
    PractitionerRole = active availabilityExceptions availableTime:PractitionerRoleAvailableTime
      code:CodeableConcept endpoint:Reference healthcareService:Reference identifier:Identifier location:Reference
      notAvailable:PractitionerRoleNotAvailable organization:Reference period:Period practitioner:Reference
      specialty:CodeableConcept telecom:ContactPoint
    PractitionerRoleAvailableTime = allDay availableEndTime availableStartTime daysOfWeek
    PractitionerRoleNotAvailable = description during:Period
    Procedure = asserter:Reference basedOn:Reference bodySite:CodeableConcept category:CodeableConcept
      code:CodeableConcept complication:CodeableConcept complicationDetail:Reference encounter:Reference
      focalDevice:ProcedureFocalDevice followUp:CodeableConcept identifier:Identifier instantiatesCanonical
      instantiatesUri location:Reference note:Annotation outcome:CodeableConcept partOf:Reference performedAge:Age
      performedDateTime performedPeriod:Period performedRange:Range performedString performer:ProcedurePerformer
      reasonCode:CodeableConcept reasonReference:Reference recorder:Reference report:Reference status
      statusReason:CodeableConcept subject:Reference usedCode:CodeableConcept usedReference:Reference
    ProcedureFocalDevice = action:CodeableConcept manipulated:Reference
    ProcedurePerformer = actor:Reference function:CodeableConcept onBehalfOf:Reference
    Quantity = code comparator system unit value
    QuestionnaireResponse = author:Reference authored basedOn:Reference encounter:Reference identifier:Identifier
      item:QuestionnaireResponseItem partOf:Reference questionnaire source:Reference status subject:Reference
    QuestionnaireResponseItem = answer:QuestionnaireResponseItemAnswer definition item:QuestionnaireResponseItem
      linkId text
    QuestionnaireResponseItemAnswer = item:QuestionnaireResponseItem valueAttachment:Attachment valueBoolean
      valueCoding:Coding valueDate valueDateTime valueDecimal valueInteger valueQuantity:Quantity
      valueReference:Reference valueString valueTime valueUri
    Range = high:Quantity low:Quantity
    Ratio = denominator:Quantity numerator:Quantity
    Reference = display identifier:Identifier reference type
    RelatedArtifact = citation display document:Attachment label resource type url
    RelatedPerson = active address:Address birthDate communication:RelatedPersonCommunication gender
      identifier:Identifier name:HumanName patient:Reference period:Period photo:Attachment
      relationship:CodeableConcept telecom:ContactPoint
    RelatedPersonCommunication = preferred
    SampledData = data dimensions factor lowerLimit origin:Quantity period upperLimit
    Schedule = active actor:Reference comment identifier:Identifier planningHorizon:Period
      serviceCategory:CodeableConcept serviceType:CodeableConcept specialty:CodeableConcept
    ServiceRequest = asNeededBoolean asNeededCodeableConcept:CodeableConcept authoredOn basedOn:Reference
      bodySite:CodeableConcept category:CodeableConcept code:CodeableConcept doNotPerform encounter:Reference
      identifier:Identifier instantiatesCanonical instantiatesUri insurance:Reference intent
      locationCode:CodeableConcept locationReference:Reference note:Annotation occurrenceDateTime
      occurrencePeriod:Period occurrenceTiming:Timing orderDetail:CodeableConcept patientInstruction
      performer:Reference performerType:CodeableConcept priority quantityQuantity:Quantity quantityRange:Range
      quantityRatio:Ratio reasonCode:CodeableConcept reasonReference:Reference relevantHistory:Reference
      replaces:Reference requester:Reference requisition:Identifier specimen:Reference status subject:Reference
      supportingInfo:Reference
    Signature = data onBehalfOf:Reference sigFormat targetFormat type:Coding when who:Reference
    Slot = appointmentType:CodeableConcept comment end identifier:Identifier overbooked schedule:Reference
      serviceCategory:CodeableConcept serviceType:CodeableConcept specialty:CodeableConcept start status
    Specimen = accessionIdentifier:Identifier collection:SpecimenCollection condition:CodeableConcept
      container:SpecimenContainer identifier:Identifier note:Annotation parent:Reference
      processing:SpecimenProcessing receivedTime request:Reference status subject:Reference type:CodeableConcept
    SpecimenCollection = bodySite:CodeableConcept collectedDateTime collectedPeriod:Period collector:Reference
      duration:Duration fastingStatusCodeableConcept:CodeableConcept fastingStatusDuration:Duration
      method:CodeableConcept quantity:Quantity
    SpecimenContainer = additiveCodeableConcept:CodeableConcept additiveReference:Reference capacity:Quantity
      description identifier:Identifier specimenQuantity:Quantity type:CodeableConcept
    SpecimenProcessing = additive:Reference description procedure:CodeableConcept timeDateTime timePeriod:Period
    Task = authoredOn basedOn:Reference businessStatus:CodeableConcept code:CodeableConcept description
      encounter:Reference executionPeriod:Period focus:Reference for:Reference groupIdentifier:Identifier
      identifier:Identifier input:TaskInput instantiatesCanonical instantiatesUri insurance:Reference intent
      lastModified location:Reference note:Annotation output:TaskOutput owner:Reference partOf:Reference
      performerType:CodeableConcept priority reasonCode:CodeableConcept reasonReference:Reference
      relevantHistory:Reference requester:Reference restriction:TaskRestriction status statusReason:CodeableConcept
    TaskInput = type:CodeableConcept valueAddress:Address valueAge:Age valueAnnotation:Annotation
      valueAttachment:Attachment valueBase64Binary valueBoolean valueCanonical valueCode
      valueCodeableConcept:CodeableConcept valueCoding:Coding valueContactDetail:ContactDetail
      valueContactPoint:ContactPoint valueContributor:Contributor valueCount:Count
      valueDataRequirement:DataRequirement valueDate valueDateTime valueDecimal valueDistance:Distance
      valueDosage:Dosage valueDuration:Duration valueExpression:Expression valueHumanName:HumanName valueId
      valueIdentifier:Identifier valueInstant valueInteger valueMarkdown valueMeta:* valueMoney:Money valueOid
      valueParameterDefinition:ParameterDefinition valuePeriod:Period valuePositiveInt valueQuantity:Quantity
      valueRange:Range valueRatio:Ratio valueReference:Reference valueRelatedArtifact:RelatedArtifact
      valueSampledData:SampledData valueSignature:Signature valueString valueTime valueTiming:Timing
      valueTriggerDefinition:TriggerDefinition valueUnsignedInt valueUri valueUrl valueUsageContext:UsageContext
      valueUuid
    TaskOutput = type:CodeableConcept valueAddress:Address valueAge:Age valueAnnotation:Annotation
      valueAttachment:Attachment valueBase64Binary valueBoolean valueCanonical valueCode
      valueCodeableConcept:CodeableConcept valueCoding:Coding valueContactDetail:ContactDetail
      valueContactPoint:ContactPoint valueContributor:Contributor valueCount:Count
      valueDataRequirement:DataRequirement valueDate valueDateTime valueDecimal valueDistance:Distance
      valueDosage:Dosage valueDuration:Duration valueExpression:Expression valueHumanName:HumanName valueId
      valueIdentifier:Identifier valueInstant valueInteger valueMarkdown valueMeta:* valueMoney:Money valueOid
      valueParameterDefinition:ParameterDefinition valuePeriod:Period valuePositiveInt valueQuantity:Quantity
      valueRange:Range valueRatio:Ratio valueReference:Reference valueRelatedArtifact:RelatedArtifact
      valueSampledData:SampledData valueSignature:Signature valueString valueTime valueTiming:Timing
      valueTriggerDefinition:TriggerDefinition valueUnsignedInt valueUri valueUrl valueUsageContext:UsageContext
      valueUuid
    TaskRestriction = period:Period recipient:Reference repetitions
    Timing = code:CodeableConcept event repeat:TimingRepeat
    TimingRepeat = boundsDuration:Duration boundsPeriod:Period boundsRange:Range count countMax dayOfWeek duration
      durationMax durationUnit frequency frequencyMax offset period periodMax periodUnit timeOfDay when
    TriggerDefinition = condition:Expression data:DataRequirement name timingDate timingDateTime
      timingReference:Reference timingTiming:Timing type
    UsageContext = code:Coding valueCodeableConcept:CodeableConcept valueQuantity:Quantity valueRange:Range
      valueReference:Reference
"""


@lru_cache(maxsize=1)
def _types() -> Mapping[str, Mapping[str, str]]:
    """Type to element to the element's type; a primitive's type is empty."""
    found: dict[str, dict[str, str]] = {}
    words, current = _TABLE.split(), dict[str, str]()
    for place, word in enumerate(words):
        if words[place + 1 : place + 2] == ["="]:
            current = found[word] = {}
        elif word != "=":
            name, _, kind = word.partition(":")
            current[name] = kind
    return found


def path_error(resource: str, path: str) -> str | None:
    """Why a resource of that type can have nothing at a path; None where it can, or where that is unknown."""
    if resource not in _types():
        return None
    at = {resource}
    for name in re.sub(r"\[[^]]*\]", "", path).split("."):
        if name.isdigit() or not name:
            continue
        if name in _EVERYWHERE or name.startswith("_") or _ANY in at:
            return None
        elements = {element: kind for one in at for element, kind in _types().get(one, {}).items()}
        following = {kind for element, kind in elements.items() if _is_meant(name, element)}
        if not following:
            what = " or ".join(sorted(at - {""})) or "a primitive value"
            return f"{path!r}: {what} has no element {name!r}{nearest(name, _names(elements))}"
        at = following
    return None


_NAMES = re.compile(r"(?:([A-Z]\w*)\.)?([a-z]\w*(?:\.[a-z]\w*)*)(?!\w|\()")
"""The elements that a FHIRPath expression begins with, with its resource type and without its first function."""


def expression_error(resource: str, expression: str) -> str | None:
    """Why no resource of that type has the elements that a FHIRPath expression begins with; None where it may."""
    found = _NAMES.match(expression.strip())
    if found is None or (found[1] is not None and found[1] != resource):
        return None
    return path_error(resource, found[2])


def _is_meant(name: str, element: str) -> bool:
    """Whether a name finds an element: its own name, or the common name of a choice."""
    return element == name or (element.startswith(name) and element[len(name) :] in CHOICE_TYPES)


def _names(elements: Mapping[str, str]) -> list[str]:
    common = {
        element.removesuffix(kind)
        for element in elements
        for kind in CHOICE_TYPES
        if element.endswith(kind) and element != kind and element[0].islower()
    }
    return sorted({*elements, *common})
