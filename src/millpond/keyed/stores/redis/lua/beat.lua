-- ARGV: skew.   Result: {now, incarnation, version, shut, {worker, about, joined, lease, leaving}...}.

return beat()
