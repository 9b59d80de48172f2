"""The same mechanisms as fused loops for the CPU, compiled by numba.

Given the same uniforms they agree with `perturb`: of the label alone to the last bit, else to 1e-12, draw by draw; read
those first. What is different where ranks matter is only the layout. A group of `lanes` rows is worked on side by side:
value (i, l), rank i of row l, stands at i·lanes + l, so that neighbours in rank are `lanes` apart and every loop over
values is a loop over contiguous memory, one row to a SIMD lane. For many classes, or one row, lanes = 1 and the ranks
themselves fill the lanes.
"""
