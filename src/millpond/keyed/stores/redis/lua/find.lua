-- What `cancel` and `where` share: look for a job in its mailbox, from its end on or from a place, so that the mailbox may
-- lose jobs at its head between two calls. Return the place of the job, from 0, and the job; or nothing: then it is not
-- there, or the third is where the search goes on, since this was enough for one call.

local SEARCHED, SEARCHED_BYTES = 5000, 4194304

local function find(mailbox, id, from)
  local box, size, looked = P .. 'mb:' .. mailbox, 0, 0
  local last = tonumber(from) or call('LLEN', box) - 1
  while last >= 0 and looked < SEARCHED and size < SEARCHED_BYTES do
    local first = math.max(0, last - 99)
    local jobs = call('LRANGE', box, first, last)
    for j = #jobs, 1, -1 do
      if string.find(jobs[j], id, 17, true) and opened(jobs[j])[1] == id then return first + j - 1, jobs[j] end
      size = size + #jobs[j]
    end
    looked, last = looked + 100, first - 1
  end
  if last >= 0 then return nil, nil, last end
end
