"""What holds for the tests of every part."""

from hypothesis import HealthCheck, settings

# A busy machine may be slow at any example: no test fails for its time.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
