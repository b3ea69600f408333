"""The side of a keyed pool that runs jobs.

serve          `pool.run()`: signals, health checks, until the end
worker         one worker: it joins, is cut off and joins again, leaves
membership     its lease: until when it surely holds
heartbeat      renews the lease
feed           takes from the store, reports to it, and moves slots as members come and go
runner         what it runs, and how much at once
running_take   one take that is running
handlers       how a handler is called: a coroutine function, a plain function; `watched`, with metrics and traces
health         what a health check is told; `health_server` answers it
"""
