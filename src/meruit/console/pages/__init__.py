"""The pages, one subject each. The console finds them by itself."""
