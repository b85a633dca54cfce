"""Whether an outcome can be believed: flags over a recorded dossier."""
