"""Ops: the command line, the checks of a bot, and the processes on one machine."""
