"""What holds for all tests."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

pytest_plugins = ["tests.postgres", "tests.servers.running"]

# A loaded machine is no bug: speed lives in benchmarks/, never in a test.
settings.register_profile(
    "meruit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, max_examples=40
)
# `make thorough`: as many examples as a person would wait for over lunch.
settings.register_profile("thorough", settings.get_profile("meruit"), max_examples=1_000)
settings.load_profile("meruit")
