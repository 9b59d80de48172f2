"""Of what should a keyed answer be a function?"""
