"""What a verdict is worth, and where the money goes; pure."""
