"""Markdown, parsed and converted to the formatting of each platform.

All that the bot says is Markdown. The library markdown-it parses it into a tree of blocks
(paragraphs, lists, tables) with inline parts, and a `Dialect` says how a platform writes each of
them. What a platform cannot show, such as a table that is too wide, becomes text without loss.

* `convert`: Markdown as a message of a platform; begin reading here.
* `parser`: the parser, with the rules that Sayso changes.
* `dialects`: how each platform writes bold text, links, quotes and code.
* `tables`, `list_numbers`: tables as text, and the numbers of ordered lists.
* `split`: a long text in several messages.
* `literal`: text that must not be read as Markdown, such as a name.
* `emphasis`: bold and italic text in scripts without spaces between words.
* `outcome_signs`: the signs before an outcome, which no model and no tool may write.
"""
