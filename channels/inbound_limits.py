"""Inbound size limits: how large a webhook, a message and a file may be.

Every platform and the web server take their limits from here. A limit that a platform sets itself
stays in its folder, as Telegram's for the files that bots get. How many messages may wait is a
limit of a conversation (`sayso.pending.stored_limits`).
"""

from __future__ import annotations

#: The most bytes of a webhook's body. Platforms send far fewer, since files come as links.
MAX_WEBHOOK_BYTES = 1_000_000
#: The most bytes of a webhook of WhatsApp through Twilio, which sends forms. A message has at most
#: 1,600 characters; in a form, where each byte of a letter becomes an escape such as `%D0`, they
#: take up to 20,000 bytes.
#: Twilio signs the decoded values, so the form must be decoded before a forged one can be refused:
#: decoding a megabyte of `%` takes 0.3 s of the processor, for any stranger who sends it.
MAX_FORM_BYTES = 64_000
#: The most fields of such a form. A message has about thirty.
MAX_FORM_FIELDS = 500

#: The most bytes of one file that a person sends. A file that a tool made has the same limit, since
#: both are stored in the same place.
MAX_FILE_BYTES = 25 * 1024 * 1024
#: The most files of one message. No platform's album has more. Telegram's rich messages may: their
#: other files are left out. The console refuses a message with more.
MAX_MESSAGE_FILES = 10

# The console is the chat page in the browser that the web process itself serves.

#: The most bytes of a message or a tap from the console's page. The longest text fits even if JSON
#: writes each of its characters as an escape such as `\u00e9`.
MAX_PAGE_MESSAGE_BYTES = 64 * 1024
#: The most characters of a text from the console's page.
MAX_PAGE_TEXT_CHARS = 4000
#: The most bytes of the data of a button that is tapped on the page: what `Button.data` may have.
MAX_TAP_BYTES = 64

# The next three only bound the work for one request. They are far above what the page sends.

#: The most values of a form that is filled in on the page.
MAX_PAGE_FORM_VALUES = 100
#: The most characters of the name of such a value.
MAX_VALUE_NAME_CHARS = 255
#: The most bytes of a request of the page that begins, renames or deletes a conversation.
MAX_CHAT_REQUEST_BYTES = 4096
#: The most bytes of the page's form with a password. Decoding a larger one would take time before
#: anything is known about its sender.
MAX_LOGIN_BYTES = 4096
