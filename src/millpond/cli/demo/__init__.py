"""`millpond demo`: real processes on one SQLite file, a picture of them, and keys that kill some.

`machine` and `renter` are the programs of the child processes: a worker of a keyed pool, and a user of GPUs. They print
what they do. `children` starts them and reads that, `ledger` counts it (pure); `tenants`, `cards` and `local` are the
pools, and `world` is all of it. `screen` draws it in a terminal, `keyboard` reads single keys, `film` records it and
`svg` writes the animated picture of the README; `show` is the command itself. Nothing on the screen is made up: each
figure is counted from what the processes said and from what the store answers.
"""
