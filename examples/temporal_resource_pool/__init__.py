"""Several workflows and a plain program share two GPUs through a pool on Temporal.

You need a Temporal server, `pip install "millpond[temporal]"`, and three terminals, two of them in the folder
`examples`:

    temporal server start-dev
    python -m temporal_resource_pool.worker
    python -m temporal_resource_pool.starter

Another server: give its address to both programs (`... .worker temporal.example:7233`), or set TEMPORAL_ADDRESS.

The worker prints who uses which GPU and when: never two at once. The starter prints what the pool decides, and what
became of everybody. Ann and bob just work. Cid goes on in a new run and keeps its GPU. Dan fails. Eve is cancelled. Fay
is terminated, so it cannot give anything back, and its GPU comes back all the same. Gil is no workflow at all and wants
both GPUs. It takes about ten seconds.

While it runs, ask the pool with Temporal's own tool:

    temporal workflow query --workflow-id millpond:gpus --type get_current_holders
    temporal workflow query --workflow-id millpond:gpus --type get_waiters
"""
