-- needs: accept_turn
-- Store a turn once and wake a worker for its conversation.
--
-- returns: the outcome, as `accept_turn` does.
return accept_turn()
