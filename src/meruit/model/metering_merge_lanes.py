"""Which lanes can be meant."""

from meruit.model.metering import Lane, LaneKind

NAMED = frozenset({LaneKind.KEY, LaneKind.PROJECT, LaneKind.SESSION})
"""Kinds of lanes that the provider has an id for."""
_SECRET = "sk-"  # noqa: S105 - how providers' secrets begin, and none itself


def why_no_lane(lane: Lane) -> str:
    """What keeps it from being a lane, and what to do; empty where it is one."""
    value = lane.value.strip()
    if lane.kind in NAMED and not value:
        return f"the lane {lane.kind} needs the provider's id of it, as {lane.kind}:ID"
    if lane.kind not in NAMED and lane.value:
        return f"the lane {lane.kind} takes no value"
    if value.lower().startswith(_SECRET):
        return "the lane looks like a key itself; give the provider's id of the key, never the secret"
    return ""
