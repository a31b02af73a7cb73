-- Leaves a packed state to the script around it.
if changed and verb ~= 'peek' then state = changed end
