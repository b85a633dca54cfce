"""Limits of one HTTP connection: how large a request's head may be, and how long the server waits for the rest."""

MAX_HEAD_BYTES = 64 * 1024
"""Largest request line, headers and trailers together."""
MAX_HEADERS = 200
"""Most headers and trailers of one request."""
HEAD_S = 10.0
"""Longest time for a request line and its headers, from the opening of the connection or their first byte."""
KEEP_ALIVE_S = 20
"""How long a connection may be idle. Clients that give up idle ones themselves do so sooner, as httpx after 5 seconds:
a request must not meet a connection that is just being closed."""
BODY_S = 30.0
"""Longest pause inside a request body."""
BODY_TOTAL_S = 300.0
"""Longest time for a whole request body."""
MAX_CONNECTIONS_PER_ADDRESS = 512
"""Most open connections of one address; half of all, so that no single address denies service to the others."""
MAX_PIPELINED = 32
"""Most requests of one connection that wait for the replies to earlier ones; a client that sends more is cut off."""
READ_BYTES = 128 * 1024
"""What the connections together may read in one round of the event loop: parsing small parts takes long. Those in a
body share it; each of the others, which are many, has its part as if all of them began a request at once."""
MIN_READ_BYTES = 1024
"""What each of many connections may read at once."""
