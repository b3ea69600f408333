"""One background job per tenant, on exactly one worker, whatever happens to workers.

Every tenant has a *resident*, which stays: here it looks after the tenant's mail. The controller, of which one runs in
the whole pool, tells which are wanted by the table of tenants: what is missing is started, what is not wanted any more
is stopped, and all are back when the store has lost its data. Residents of a worker that leaves or is killed go on
elsewhere.

The whole story, told by one program that starts and kills workers (in the folder `examples`):

    python -m tenants.story

Or by hand, in several terminals:

    python -m tenants.worker                  # as many as you like; kill them as you like
    python -m tenants.tenant add ann bob      # changes the table; the controller does the rest
    python -m tenants.tenant remove bob
    python -m tenants.tenant                  # who runs what

There is no server: all meet in files of the working directory. For Redis, `MILLPOND_URL=redis://localhost`.
"""
