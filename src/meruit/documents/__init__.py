"""What people write, read: YAML and JSON with their lines, and every mistake told at once."""
