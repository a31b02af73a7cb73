-- Takes a packed state from the script around it.
local value = state
