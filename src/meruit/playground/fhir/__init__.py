"""A FHIR R4 server for agents to act on.

Read in this order:

- app.py - HTTP in and out
- endpoint.py - what one request does
- resources.py - resources in the playground; search.py - searches and histories; bundles.py - batches and transactions
- json.py, json_patch.py - JSON that keeps decimals as written, and JSON Patch
"""
