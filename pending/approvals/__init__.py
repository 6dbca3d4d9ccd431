"""Actions that other people decide: the people, their votes, and how they are asked.

`pending/approval_rule.py` has the rule: who may decide, and how many must agree. `people.py` says
who a person is, `votes.py` what was decided, and `requests.py` what is asked in the chats of those
who may decide.
"""
