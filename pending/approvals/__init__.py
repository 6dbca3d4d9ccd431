"""Actions that other people decide: the people, their votes, and how they are asked.

An *action* waits in the conversation of the person who asked for it, the *asker*. A *request* is
the question to each person who may decide, in that person's own chat. A *vote* is the answer to it.

* `../approval_rule.py`: who may decide, and how many must agree.
* `people.py`, `directory.py`, `role_groups.py`: who a person is, and which roles they have.
* `approvers.py`: who is asked about an action, and who may decide about it.
* `requests.py`: what a request stores.
* `votes.py`: what a vote stores, and how votes are counted.
* `endings.py`: how an action and its requests ended, read from the audit log.
* `linking.py`, `links.py`: how people join their accounts.
* `absences.py`: who is away.
* `self_service.py`: what people tell the bot about themselves by commands.

The modules `approval_*.py` in `agent/channel/` use all of this when they answer a turn.
"""
