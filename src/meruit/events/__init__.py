"""The outbox, its dispatcher, webhooks and the commit signal."""
