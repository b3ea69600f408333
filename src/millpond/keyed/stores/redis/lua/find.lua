-- What `cancel` and `where` share: the place of a job in its mailbox, from 0, and the job; nil: it is not there.

local function find(mailbox, id)
  local box, from = P .. 'mb:' .. mailbox, 0
  while true do
    local jobs = call('LRANGE', box, from, from + 499)
    for j, job in ipairs(jobs) do
      if string.find(job, id, 17, true) and opened(job)[1] == id then return from + j - 1, job end
    end
    if #jobs < 500 then return nil end
    from = from + 500
  end
end
