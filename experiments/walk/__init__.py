"""An attacker who walks around a record."""
