"""A provider on this machine that counts and bills tokens, for tests and demos.

- server.py - the server, and the calls that are made at it
- calls.py - all calls, and which of them are visible at a time
- faults.py - outages, late data and other faults
- base.py - what the APIs share
- openai.py, anthropic.py, openrouter.py, litellm.py - one API each
"""
