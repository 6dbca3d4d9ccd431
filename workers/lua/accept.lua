-- needs: accept_turn
-- Store a turn once and wake its conversation.
-- Returns {outcome, number of the turn or '0'}.
return accept_turn()
