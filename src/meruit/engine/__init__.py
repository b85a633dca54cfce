"""The only place where order and time live."""
