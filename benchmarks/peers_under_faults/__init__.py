"""The same faults for Sayso and for its peers: `python -m benchmarks.peers_under_faults --help`."""
