"""Bodies of requests: read, parsed and freed so that no large one holds up the service.

Read `json_body.py` first: the parser, and what a route sees. `dismantle.py` frees a large body in pieces, and `gc.py`
keeps the garbage collector from stopping the service meanwhile.
"""
