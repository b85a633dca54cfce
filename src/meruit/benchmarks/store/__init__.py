"""Tables and SQL of benchmarks and task runs."""
