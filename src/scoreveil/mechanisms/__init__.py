"""The mechanisms: `regions` is fitted, `isotonic` needs no data and is the default, `published` is the paper's.

Each is written once in plain array operations (numpy, torch, any array-API namespace) and once, in `kernels`,
as fused loops for the CPU. All take their uniform draws as an argument, so they can be compared draw by draw.
"""
