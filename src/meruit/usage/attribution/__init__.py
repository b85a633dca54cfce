"""Which of a provider's counts belong to which run."""
