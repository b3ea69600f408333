"""The rules of a keyed pool: pure, with no clock, thread, socket or randomness. In Python they are written here only.

    pool       Rules: what every verb of a store does: batches, members, slots, work, commands
    orders     what producers and people ask for: dispatch, cancel, purge, pause, replay; start, stop, message
    takes      what a worker is handed
    mailboxes  where every job stands: enter, report, recover, and what is due
    tables     what a pool consists of, as tables which a store keeps in memory or in rows
    plan       who is dead, what a worker gives away and claims
    placement  which worker should own which slot, which slot a key has

and what they are about, as data: `records` (orders, takes, reports, members), `commands` and `questions` (what a store
is asked to do and to tell), `envelope` (a job as it is stored), `settings`, `times` (of schedules), `page`, `checks`.

`stores.memory` runs them over dictionaries, `stores.sqlite` over rows within a transaction. Redis has a twin of them in
Lua, which a differential test keeps equal.
"""
