"""Inbound size limits: how large a webhook, a message and a file from outside may be.

Every platform and the web server take their limits from here. A limit that a platform sets itself
stays in its folder, as Telegram's for the files that bots get. How many messages may wait is a
limit of a conversation (`sayso.pending.limits`).
"""

from __future__ import annotations

#: Bytes of a webhook's body. Platforms send far fewer, since files come as links.
MAX_WEBHOOK_BYTES = 1_000_000
#: Bytes and fields of a webhook that is a form. The 1,600 characters of a WhatsApp message have
#: 20,000 bytes as escapes, in about thirty fields. Twilio signs decoded values, so a form of any
#: sender is decoded before it can be refused: a megabyte of `%` takes 0.3 s.
MAX_FORM_BYTES = 64_000
MAX_FORM_FIELDS = 500

#: Bytes of one file that is stored: of people, and of tools.
MAX_FILE_BYTES = 25 * 1024 * 1024
#: Files of one message. No platform's album has more.
MAX_MESSAGE_FILES = 10

#: Bytes of a message or a tap from the console's page: 4,000 characters of JSON escapes fit.
MAX_PAGE_MESSAGE_BYTES = 64 * 1024
#: Characters of a text from the console's page.
MAX_PAGE_TEXT_CHARS = 4000
#: Bytes of the data of a button that is tapped on the page, as in `sayso.channels.types.Button`.
MAX_TAP_BYTES = 64
#: Values of a form that is filled in on the page, and characters of a value's name.
MAX_PAGE_FORM_VALUES = 100
MAX_VALUE_NAME_CHARS = 255
#: Bytes of a request of the page that begins, renames or deletes a conversation.
MAX_CHAT_REQUEST_BYTES = 4096
#: Bytes of the page's form with a password. Decoding a larger one would take time before anything
#: is known of its sender.
MAX_LOGIN_BYTES = 4096
