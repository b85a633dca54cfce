"""Read other systems completely, as evidence for checks; and call other systems over HTTP.

Read in this order:

- retry.py - what a source is; limits, retries, and reading until it has settled
- credentials.py - secrets for other systems
- http.py - the one HTTP client; http_replies.py - what replies and statuses mean
- source_client.py - reading over HTTP, with each request recorded
- fhir.py, fhir_replies.py - a FHIR R4 server
- rows.py - an application's state and events; json_text.py - JSON with its text
- objects.py, sftp.py, file_items.py - files of a folder, a bucket or an SFTP server
- open.py - a source by its address
- http_guard.py - calls to URLs that clients registered
"""
