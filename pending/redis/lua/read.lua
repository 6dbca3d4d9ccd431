-- needs: actions
-- Some actions by name. ARGV: conversation, actions...
local found = {}
for at = 2, #ARGV do found[at - 1] = action_row(ARGV[at]) end
return found
