"""Jobs with a key, and producer and worker in separate programs: the example of the text that keyed pools come from.

In one terminal, in the folder `examples`:

    python -m fibonacci.worker            # works for five seconds, then leaves; Ctrl-C ends it earlier

and in another, before, meanwhile or after:

    python -m fibonacci.producer 42 7 90

There is no server: both meet in the file `fibonacci.db` of the working directory. For Redis give its URL, to both, as
`MILLPOND_URL=redis://localhost`.
"""
