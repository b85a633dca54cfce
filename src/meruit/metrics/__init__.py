"""Work in, numbers out. Each file is a family of metrics; a new file is found by itself."""
