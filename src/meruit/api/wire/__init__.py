"""Requests and replies as clients see them: one file per resource, common.py for what all share."""
