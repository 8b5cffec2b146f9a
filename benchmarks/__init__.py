"""Benchmarks: competitors measured side by side in one run. README.md in this folder tells how to rerun them."""
