"""The check of a GPU: `python -m benchmarks.gpu`. See docs/how-it-works/gpu.md."""
