"""The paper's experiments, run again, and its printed numbers beside ours."""
