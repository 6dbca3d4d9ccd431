"""FOLDER: names the environment variable with the folder in which processes count together.

A command sets the variable before it starts its processes. `infra/metrics.py` reads it when it is
imported, so the name stands here, where importing it reads nothing.
"""

from __future__ import annotations

#: The variable with the folder of the common files, as prometheus-client calls it.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
