"""Markdown, parsed and converted to the formatting of each platform.

All that the bot says is Markdown. The library markdown-it parses it into a tree of blocks
(paragraphs, lists, tables) with inline parts, and a `Dialect` says how a platform writes each of
them. What a platform cannot show becomes text without loss: a table that is too wide becomes
paragraphs, an image a link, and raw HTML stays as it was written.

* `convert`: Markdown as a message of a platform; begin reading here.
* `parser`: the parser, with the rules of CommonMark that Sayso changes.
* `emphasis`: one of these changes. CommonMark needs spaces or punctuation around `**` to know bold
  text, and some scripts put no spaces between words.
* `dialects`: how each platform writes bold text, links, quotes and code.
* `tables`, `list_numbers`: tables as text, and the numbers of ordered lists.
* `split`: Markdown too long for one message, cut into pieces before they are converted.
* `literal`: text that must not be read as Markdown, such as a name.
* `outcome_signs`: the signs, such as ✅, that begin the bot's own line on how an action ended. In the
  text of a model or a tool they become plain characters, so that it cannot claim a success.
"""
