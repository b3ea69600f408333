"""What both sides of a keyed pool use, who dispatches and who works.

connection  the pool as this process knows it: its store, its settings, the handlers by name
definition  one handler and its options
arguments   values of users as bytes, and back
outcome     errors of handlers as bytes, and back
notices     what an operator should know: events and lines of the log
"""
