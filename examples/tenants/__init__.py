"""One background job per tenant, on exactly one worker, whatever happens to workers.

Every tenant has a *resident*, which stays: here it looks after the tenant's mail. A second resident, of which there is
one in the whole pool, is the controller: it compares those that run with the table of tenants, starts what is missing
and stops what is not wanted any more. Residents of a worker that leaves or is killed go on elsewhere.

The whole story, told by one program that starts and kills workers (in the folder `examples`):

    python -m tenants.story

Or by hand, in several terminals:

    python -m tenants.worker                  # as many as you like; kill them as you like
    python -m tenants.tenant add ann bob      # changes the table; the controller does the rest
    python -m tenants.tenant remove bob
    python -m tenants.tenant                  # who runs what

There is no server: all meet in files of the working directory. For Redis, `MILLPOND_URL=redis://localhost`.
"""
