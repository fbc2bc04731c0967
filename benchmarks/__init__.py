"""Speed and quality measurements. ``python -m benchmarks NAME`` runs one; ``RESULTS.md`` keeps the figures."""
