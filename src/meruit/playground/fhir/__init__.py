"""A FHIR server for agents to act on."""
