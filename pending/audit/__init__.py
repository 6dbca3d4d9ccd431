"""Audit: the log of all states that actions entered, in hash chains that show any change.

Redis scripts write the entries (`entries.py`). Each worker moves them to the ledger on its disk
(`collector.py`, `ledger.py`) with the body of each action, which can be erased (`bodies.py`).
Entries can be exported (`export.py`), and all copies verified together (`chain_check.py`, `verify.py`).
"""
