"""Our speed beside the peers', on the same work in the same run. `python -m benchmarks` prints ratios."""
