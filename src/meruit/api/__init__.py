"""The HTTP service: it reads requests, calls a capability, and writes replies. It decides nothing itself.

Read in this order:

- app.py - the application: routes, error handlers, background tasks
- request.py - what a route works with: the service, the caller, idempotent writes
- routes/ - one file per resource; wire/ - their requests and replies
- auth.py - keys and roles; rate_limit.py - limits per key and per address
- direct_routes.py - plain requests to verify and health, past the framework (`meruit.web`)
- bodies/ - strict JSON; admission.py - how many large bodies at once; query_params.py - unknown parameters
- quotas.py - stored bytes of a tenant or a key
- idempotency.py - the header Idempotency-Key
- problems.py - errors as RFC 9457 problems; openapi.py - the description of the API
- telemetry.py - request ids, metrics; logging.py - JSON log lines
- server.py - uvicorn, start and shutdown; http_protocol.py and http_limits.py - limits of a connection
- processes/ - several workers on one address; sibling_workers.py - what they send each other
- listing.py - what lists share; file_stream.py - whole lists and exports, sent while they are read
- playground_host.py - the playgrounds that this process serves
- db_threads.py - threads for reads
"""
