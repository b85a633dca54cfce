"""Tables and SQL of events, webhooks and deliveries."""
