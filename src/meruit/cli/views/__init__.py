"""Results as text for people: verdict.py, contract.py, usage.py, benchmark.py, one for each kind of result."""
