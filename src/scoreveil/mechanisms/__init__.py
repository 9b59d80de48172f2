"""The two mechanisms: `published` is the paper's, `isotonic` the one that holds and the default.

Each is written once in plain array operations (numpy, torch, any array-API namespace) and once, in `kernels`,
as fused loops for the CPU. Both take their uniform draws as an argument, so they can be compared draw by draw.
"""
