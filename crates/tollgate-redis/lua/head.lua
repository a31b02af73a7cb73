-- What every script starts with; after it comes the word whether refunds are wanted too.
-- VERSION  the first byte of every packed state
-- SLACK    milliseconds a state is kept beyond its end, for the rounding of clocks: a spent state means the same as none
-- twins    by the two letters that end a key: decide(packed, value, now, take) ->
--            allowed, remaining, retry_after, reset_after, changed
--          packed is the cost and the numbers of the limit as little-endian doubles, value the stored state or false, now
--          in microseconds; changed is the state to store, if the cost was taken or the state was made to fit other
--          numbers. sliding_log takes the key for the value and a mode for take, and stores its changes itself.
-- refunds  likewise: refund(packed, value, now, charged_at) -> given, reset_after, changed
local VERSION = 1
local SLACK = 1000
local CORRUPT = 'TOLLGATE_CORRUPT a key holds something tollgate did not write'
local twins = {}
