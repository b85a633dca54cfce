"""People's labels: review.py is `meruit review`, judge.py is `meruit judge`."""
