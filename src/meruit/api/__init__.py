"""The HTTP service: what goes over the wire, and nothing that decides."""
