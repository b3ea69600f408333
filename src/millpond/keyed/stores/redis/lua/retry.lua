-- Try the first job of a mailbox again that waits for that.   ARGV: skew, slot, mailbox.   Result: {ready or gone}.

local entry = remove_entry('retry', ARGV[3])
if not entry then return {'gone'} end
try_again(entry[1], ARGV[3])
finish()
return {'ready'}
