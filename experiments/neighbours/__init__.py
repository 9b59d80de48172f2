"""An attacker who also asks about noisy copies of a record."""
