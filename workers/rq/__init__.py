"""The worker process on RQ, the job queue that wakes workers.

`jobs` are the jobs, `worker` runs many of them at once, `job_registry` shows them to RQ's tools,
and `process` starts and ends the whole.
"""
