"""Which records are the same: exactly, or nearly.

- `exact.py`: equal values, equal bytes. A gateway without memory draws by these, and Ray and Spark by those of the
  columns that name a record.
- `marks.py`: near-duplicates share a mark, other records hardly ever do; `typical.py` says how near that is.
  A gateway with memory looks for any of eight marks in its ledger. An integration has no ledger, so it goes by a single
  mark with wider cells (`fingerprints.py`).
- `texts.py`: texts that differ in case, blanks or signs alone are one text, for marks.

Where scores are all that is known, `mechanisms/messages.py` takes their magnitudes. docs/decisions/same-record.md says
why there is no third notion.
"""
