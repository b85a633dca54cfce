"""SQL of events, webhooks and deliveries."""
