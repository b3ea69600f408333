"""Workflows lock accounts by name: each may be used by one workflow at a time, others are not held up.

You need a Temporal server, `pip install "millpond[temporal]"`, and three terminals, two of them in the folder
`examples`:

    temporal server start-dev
    python -m temporal_resource_locking.worker
    python -m temporal_resource_locking.starter

Another server: give its address to both programs (`... .worker temporal.example:7233`), or set TEMPORAL_ADDRESS.

Twelve transfers between four accounts run at once. Each locks its two accounts, all or nothing, so two transfers that
name them the other way round cannot wait for each other. It reads both balances, waits, and writes both: without the
locks money would get lost. The worker prints each transfer, the starter the balances. It takes a few seconds.

Who has which account, and who waits for what:

    temporal workflow query --workflow-id millpond:accounts --type get_current_holders
    temporal workflow query --workflow-id millpond:accounts --type get_waiters
"""
