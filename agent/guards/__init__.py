"""Guards: what an agent checks before it acts or answers.

| what is checked | where |
|---|---|
| whether a tool call runs, needs an approval, or is denied | `policy.py` |
| whether an argument contains what a rule forbids | `argument_patterns.py` |
| texts of users and answers of models | `guardrails.py` |
| whether a tool call fits what the user asked for | `coherence.py` |
| what a run or a period costs | `budget.py` |
| whether a model repeats itself | `loop_detection.py` |
"""
