"""The stories of `meruit demo`."""
