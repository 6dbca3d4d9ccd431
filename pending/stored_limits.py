"""Limits and lifetimes of what is stored: each Lua script gets them as local variables.

How long a question can be answered is not here: it is `confirm_ttl` of a channel, with its default
and its maximum in `pending/action.py`.
"""

from __future__ import annotations

#: How long a conversation without turns is stored.
KEEP_CONVERSATION_MS = 30 * 24 * 3600 * 1000
#: How long the mark that a person opted out is stored: a year after the last reply to them.
KEEP_OPT_OUT_MS = 365 * 24 * 3600 * 1000
#: How long the ids of a person are stored after the last message: as long as a platform's others.
KEEP_IDENTITY_MS = 90 * 24 * 3600 * 1000
#: How long the ids of a person are stored whom the access rules have refused.
KEEP_STRANGER_MS = 3600 * 1000
#: The most ids of one person that are stored.
MAX_IDS = 8
#: How long a pending action is stored after it ended, so that a repeated turn finds its outcome.
KEEP_ACTION_MS = 48 * 3600 * 1000
#: The longest time that an action may wait for other people: MAX_WITHIN_SECONDS of
#: `approval_rule.py`.
MAX_WAITING_MS = 14 * 24 * 3600 * 1000
#: How long a person who asks for the same again is told that it was done.
KEEP_RECENT_MS = 3600 * 1000
#: The most started actions of a person that are remembered for that.
MAX_RECENT = 50
#: How long a question stays open at least once its person has opened its form.
FORM_MS = 600_000
#: How long the status of a reply is stored.
KEEP_DELIVERY_MS = 7 * 24 * 3600 * 1000
#: For this long after the outcome of a yes or no, the same answer again
#: repeats it and is not answered.
REPEAT_MS = 60_000
#: How long people are told of a loss of data after the server was resumed.
KEEP_LOSS_MS = 24 * 3600 * 1000
#: How long a reply is held until the user writes.
KEEP_HELD_MS = 7 * 24 * 3600 * 1000
#: How long the id of a conversation's job is stored, if the queue has a separate server.
KEEP_JOB_MS = 24 * 3600 * 1000
#: How long the state of a channel's rate limit is stored.
KEEP_RATE_MS = 24 * 3600 * 1000

#: A day: paid messages are counted by the day.
DAY_MS = 24 * 3600 * 1000
#: How long the count of one day is stored: until `sayso doctor` has shown it the day after.
KEEP_PAID_MS = 3 * 24 * 3600 * 1000

#: After this time a wake-up that no worker answered is repeated.
WAKE_GRACE_MS = 5_000
#: After this time the reaper looks again at a wake-up that is still in the queue. Less than
#: SOON_MS, so that the conversation counts as one with work.
LOOK_AGAIN_MS = 10_000
#: A conversation that is due within this time has work or a lease;
#: a later one waits for a platform or a timer.
SOON_MS = 15_000
#: An action that was claimed or started this long ago, without a lease, has lost its process.
STALE_MS = 120_000
#: For this long messages are dropped where the bot may not write; then the next one is answered,
#: to try again.
BARRED_MS = 3600 * 1000
#: Within this time a client that lost an answer asks again.
ASKED_AGAIN_MS = 60_000
#: The time between two notices to a sender whose turns are refused.
BUSY_NOTICE_MS = 60_000
#: The time between messages that waited for a channel without a rate.
SPREAD_MS = 50

#: Replies of a conversation whose status is stored: the last ones.
MAX_DELIVERIES = 50
#: For how many turns of a conversation, the last ones, is stored how they were answered. They are
#: stored for as long as deliveries.
MAX_ANSWERED = 50
#: Undelivered replies of a shard in each list for the operator.
MAX_UNDELIVERED = 1000
#: Timers of one conversation.
MAX_TIMERS = 100
#: Replies that may wait in a conversation to which others forward theirs.
MAX_FORWARDED_WAITING = 100
#: Messages that may show one question: its pieces, copies and repetitions.
MAX_QUESTION_MESSAGES = 50
#: How often an action that may be repeated is started at most.
MAX_STARTS = 3
#: The attempt of a turn that waited in a backup: more than any turn gets, so it is given up.
GIVEN_UP = 1000
#: Standing yeses of one person in a conversation.
MAX_STANDING = 20
#: Turns that may be answered as one.
MAX_BURST = 10
#: Audit entries of a shard that may wait for a worker.
#: Beyond that the oldest are dropped and leave a gap.
MAX_AUDIT_ENTRIES = 5000
#: Places beyond a full inbox, for taps, stops and answers to a question.
URGENT_PLACES = 10
#: Urgent places for one user.
URGENT_PLACES_EACH = 2
#: Taps of one person on buttons of others, or on questions of others that have ended: so many a
#: minute are answered, and so many at once. Further ones are dropped, since each takes a worker
#: from those who may decide there.
FOREIGN_TAPS_PER_MINUTE = 6
FOREIGN_TAPS_IN_ONE_GO = 3
#: Conversations of each reserve, beside a tenth of the limit: one for notices of refusal,
#: one for urgent turns.
RESERVED_CONVERSATIONS = 10

#: Prefix of the ids of urgent jobs: they go to the front of the queue,
#: and may take a worker's reserved places.
URGENT_JOB = "first-"
#: The hash that the first entry of an audit chain names as the one before it.
NO_HEAD = "0" * 40
