"""One turn of one person on one channel.

Read it in this order:

* `channel_agent`: takes a turn and lets the part answer that knows this kind of turn.
* `context`, `turn_contexts`: what is known about a turn, and how it is gathered.
* `stored_history`, `long_texts`: the history that is stored at the end of a turn. `user_messages`:
  a turn as a message of it. `turn_files`: the files that people send and tools make.
* `message_reading`, `decide`: what a message says, and what it means for the action that waits.
* `confirmation`: does what was decided. Its parts: `confirmed_actions` (a yes or a no),
  `other_messages` (the model answers), `question_repeats`, `value_changes`.
* `outcome_answers`, `outcome_history`: how an action ended, for the person and for the model.
* `run_replies`, `questions`: what a person reads of a run, and the questions with their buttons.
* `turn_journal`, `failed_turns`: a turn that another worker takes over, and one that fails.
* `continuations`: the agent goes on after a decision. `direct_turns`: turns without a worker.

Three words: an *action* is a stored proposal. As a `StoredAction` it is called `stored`, and
`stored.action` is the signed `PendingAction` in it. A *question* is the message that shows an
action. A *choice* is one of several offered answers, which confirms nothing.
"""
