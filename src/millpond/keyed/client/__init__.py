"""The side of a keyed pool that hands jobs over, waits for results, looks at the pool and changes it.

_async, _sync         what users call: pool, job handles and receipts, admin, search. `_async` is written by hand,
                      `_sync` is generated from it
bridge, async_bridge  how a thread blocks, how a task awaits
sender                dispatches on their way to the store, in batches
results               outcomes on their way back
schedule              `cron`, `every` and `controller`
cursor                where a page of a list goes on
"""
