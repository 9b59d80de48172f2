"""Tables of scores in memory, and what stands in their columns.

frames           DataFrames of pandas and polars, and Arrow tables
raw_columns      which other columns give the scores away
label_columns    what scikit-learn answers about several labels
"""
