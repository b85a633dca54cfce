"""What importers share: the source and its pieces, JSON in a stream, ZIP archives, chat messages."""
