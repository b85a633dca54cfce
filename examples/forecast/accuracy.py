import numpy as np


def metric(input, output, metadata):
    actual = np.array(input["ground_truth"], dtype=float)
    forecast = np.array(output["forecast"], dtype=float)
    low, high = np.array(output["low"], dtype=float), np.array(output["high"], dtype=float)
    return {
        "mape": np.mean(np.abs(forecast - actual) / actual),
        "interval_coverage": np.mean((low <= actual) & (actual <= high)),
    }
