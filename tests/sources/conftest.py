"""The servers that sources are read from in tests."""

from tests.servers.running import gcs, medplum, sshd

__all__ = ["gcs", "medplum", "sshd"]
