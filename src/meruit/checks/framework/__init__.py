"""What all checks share: assertion, compilation, context, selection."""
