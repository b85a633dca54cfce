"""FHIR data types and search, as far as checks need them."""
