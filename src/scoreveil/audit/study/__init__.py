"""A study: every defense against every attack, from scores to values."""
