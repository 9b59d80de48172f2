"""A study as people read it: the verdict, figures, tables, one HTML page."""
