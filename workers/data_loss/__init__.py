"""Data loss: notice that Redis lost acknowledged writes, and deal with it.

Redis may lose writes that it had acknowledged: it is restarted on an old file, or a replica that
lagged takes over. `watermarks` says what is compared, `known_shards` what a process remembers,
`guard` notices the loss and halts the server, `resume` lets an operator go on, and `notices` tells
people what was forgotten.
"""
