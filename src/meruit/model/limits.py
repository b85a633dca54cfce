"""Limits that several packages share: most are on custom metric code, from reading it to running it."""

MAX_EXPRESSION = 4_096
"""Characters of one expression."""
MAX_CODE_BYTES = 256 * 1024
"""Of one piece of code, in UTF-8."""
MAX_METRICS = 64
"""Metrics that one piece of code may compute."""
MAX_NAME = 200
"""Characters of a metric's name."""
MAX_CUSTOM_METRICS = 64
"""Pieces of code in one set of criteria."""
MIN_CANARY = 8
"""Characters of a canary, which an author hides in the work."""
DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS = 5_000, 60_000
DEFAULT_MEMORY_MB, MIN_MEMORY_MB, MAX_MEMORY_MB = 256, 16, 8_192
