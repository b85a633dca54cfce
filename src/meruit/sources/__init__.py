"""Where the service reaches out into the world."""
