"""Models behind an OpenAI-compatible chat endpoint.

- endpoint.py - `ChatEndpoint`: one request, with retries and clear errors
- stream.py - build one answer from a reply in one piece or in a stream
"""
