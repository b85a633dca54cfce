"""What several commands do: open the engine, load agents, read files."""
