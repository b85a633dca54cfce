"""How near a forecast came, and how often its range held the truth."""

import numpy as np


def metric(input, output, metadata):
    """The mean absolute percentage error, and the share of weeks inside their range."""
    actual = np.array(input["ground_truth"], dtype=float)
    forecast = np.array(output["forecast"], dtype=float)
    low, high = np.array(output["low"], dtype=float), np.array(output["high"], dtype=float)
    return {
        "mape": np.mean(np.abs(forecast - actual) / actual),
        "interval_coverage": np.mean((low <= actual) & (actual <= high)),
    }
