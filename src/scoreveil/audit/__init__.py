"""The audit: attack the scores of a model, undefended and defended, and say what still leaks.

A defense is only as good as the best attack tried on it. Computing returns values (`study`); only `report` and the
command line render.
"""
