"""The networks that a study trains."""
