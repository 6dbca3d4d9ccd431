"""FOLDER: where the processes of one command count together.

`infra/metrics.py` reads it when it is imported, so others must be able to set it before.
"""

from __future__ import annotations

#: The variable with the folder of the common files, as prometheus-client calls it.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
