"""Infra: what knows no chat. Redis and its scripts, files, HTTP, threads, metrics, traces."""
