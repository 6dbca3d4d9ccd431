"""Consent: decide whether a message is a yes or a no to the open question.

The whole message is looked up in tables of phrases, one data file per language (`languages/`). A
phrase inside a longer sentence never decides: a missed yes costs the person another tap, a false
yes cannot be undone.

* `parser`: reads a yes or a no. Begin reading here.
* `phrases`: the tables of phrases. `words`: a message as words, without what could deceive.
* `asking`: messages that ask about the question or for time.
* `refusing`: a yes or a no with more words.
* `quoting`: which question a message belongs to.

A message is compared in one of three forms (`words`):

* `plain_words`, for decisions: "" for a message with a question mark, a digit or an odd letter.
* `bare_words`, for what decides nothing: without punctuation and emoji, so "yes?!" is "yes".
* `lettered_words`, for the words of a preview, which may be any text.
"""
