"""Three agents' nightly runs, stored as columns, judged by today's criteria in one go."""

import numpy as np

from meruit import SuccessCriteria, VerificationEngine
from meruit.judge import VERDICTS, judge_columns

CRITERIA = SuccessCriteria.model_validate(
    {
        "criteria": [
            {"metric": "f1_score", "metric_type": "f1_score", "comparison": "gte", "threshold": 0.85, "weight": 3},
            {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "weight": 1},
        ],
        "aggregation": "weighted",
        "minimum_weighted_score": 0.75,
    }
)


def main() -> None:
    """Print, for each agent, how its runs ended; what was not measured is shown apart."""
    plan = VerificationEngine().compile(CRITERIA).plan
    chance = np.random.default_rng(1)
    for agent, skill, dropped in (("steady", 0.92, 0.0), ("erratic", 0.84, 0.0), ("shy", 0.95, 0.3)):
        f1 = np.clip(chance.normal(skill, 0.04, 10_000), 0, 1)
        f1[chance.random(10_000) < dropped] = np.nan
        batch = judge_columns(plan, {"f1_score": f1, "latency_ms": chance.gamma(4, 350, 10_000)})
        ended = {str(verdict): int((batch.verdict == code).sum()) for code, verdict in enumerate(VERDICTS)}
        print(f"{agent:8} success {batch.success.mean():.3f}  {ended}")


if __name__ == "__main__":
    main()
