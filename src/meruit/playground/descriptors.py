"""How many playgrounds the limit of open files allows.

Each playground keeps a listening socket, and those in use keep the files of their database open. What is left must be
enough for connections, sandboxes and the service itself.
"""

import resource

import msgspec

MAX_PLAYGROUNDS = 10_000
"""Of one host."""
MAX_OPEN = 200
"""Playgrounds whose files are kept open; the others are opened when they are used."""
FILES_PER_STATE = 3
"""A database, its log and its index."""
RESERVED_DESCRIPTORS = 512
"""For connections, sandboxes and the rest of the service; at most half of what there is."""
DESCRIPTORS_WANTED = MAX_PLAYGROUNDS + MAX_OPEN * FILES_PER_STATE + RESERVED_DESCRIPTORS
_FILES_SHARE = 4
"""One part in so many is for the files of playgrounds in use."""


class DescriptorPlan(msgspec.Struct, frozen=True):
    """How a host spends its descriptors."""

    playgrounds: int
    open_states: int


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files towards the hard one, as far as it helps; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A limit of many millions would slow down programs that close every descriptor they could have.
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def plan_descriptors(limit: int) -> DescriptorPlan:
    """Divide a limit of open files between sockets, files and everything else."""
    free = limit - min(RESERVED_DESCRIPTORS, limit // 2)
    open_states = max(1, min(MAX_OPEN, free // _FILES_SHARE // FILES_PER_STATE))
    return DescriptorPlan(max(0, min(MAX_PLAYGROUNDS, free - open_states * FILES_PER_STATE)), open_states)
