"""Where people already are: one small file for each library, one extra each.

    from scoreveil.integrations.sklearn import VeiledClassifier
    from scoreveil.integrations.torch import VeiledModule

Each wraps a model of its library and answers with veiled scores. None has a public name that leads to raw ones; what
is private in Python can still be reached by who runs code in the same process, so this guards against mistakes, not
against the owner of the process.
"""
