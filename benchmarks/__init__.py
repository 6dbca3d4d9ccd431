"""Benchmarks: what Sayso costs, beside floors and peers, as ratios inside one run."""
