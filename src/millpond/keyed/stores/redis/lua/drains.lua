-- In front of scripts that bring work to its end. A server that is full refuses the first write of a script that may need
-- memory, and this one needs none; so workers go on, and make room, when only new jobs have to be refused.

call('HDEL', META, '-')
