"""The side of a keyed pool that runs jobs.

serve         `pool.run()`: signals, health checks, until the end
worker        one worker: it joins, is cut off and joins again, leaves
membership    its time under one id, and until when its lease surely holds
heartbeat     renews the lease
feed          takes from the store and reports to it
rebalancer    gives and claims slots as members come, go and die
runner        begins what was taken, and stops what moves; `pace`: how much at once
job_runner    runs the jobs of one take; `residents`: runs a resident
running_take  one take that is running, and the table of them all
handlers      how a handler is called: a coroutine function, a plain function; `watched`: with metrics and traces
health        what a health check is told; `health_server` answers it
"""
