"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A loaded machine is no bug: speed lives in benchmarks/, never in a test.
settings.register_profile("meruit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("meruit")
