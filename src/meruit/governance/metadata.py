"""The metadata of a run that an agent may give, and the metadata that a rule reads."""

from meruit.model.work import CLAIMED

TIMES_MS = ("duration_ms", "ttfb_ms", "processing_ms")
OF_AGENTS = frozenset({*TIMES_MS, "started_at", "ended_at", "output_tokens", "total_tokens", "run_id"})
"""Metadata that an agent may give about its own run; all of it counts as a claim."""
TELLING = OF_AGENTS - {"duration_ms", "ttfb_ms", "processing_ms", "run_id"} | {
    *("received_at", "observed_ms", "claimed_metrics", "usage", "evaluator", "reported_by", CLAIMED),
}
"""Metadata from which a rule could learn something; a duration alone only has to be possible."""
