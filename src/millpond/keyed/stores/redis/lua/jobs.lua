-- Some jobs of mailboxes.   ARGV: skew, bytes after which it is too much, {mailbox, place of the first, how many}...
-- Result: {{job...}...}; nothing for a mailbox that was too much.

local found, size = {}, 0
for i = 3, #ARGV, 3 do
  local jobs = false
  if size <= tonumber(ARGV[2]) then
    jobs = call('LRANGE', P .. 'mb:' .. ARGV[i], ARGV[i + 1], ARGV[i + 1] + ARGV[i + 2] - 1)
    for _, job in ipairs(jobs) do size = size + #job end
  end
  found[#found + 1] = jobs
end
return found
