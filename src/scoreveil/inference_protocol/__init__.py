"""The Open Inference Protocol v2, which KServe, Triton and MLServer speak, for servers that veil.

messages.py   requests and answers, from bytes to bytes     tensors.py    arrays in JSON and in binary
errors.py   answers that decline, with their status       unread.py     long lists that need not be parsed
"""
