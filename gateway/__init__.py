"""The gateway: admission, queue, turns and delivery, on one database."""

from adapters.optional import leave_out

# Log lines are JSON, and tracebacks in them plain: a rich one shows the values of variables. With
# greenlet structlog would keep context that Parley has in contextvars.
leave_out("structlog", "better_exceptions", "greenlet", "rich")
# For values of a library that Parley does not use; the command line is made of rich.
leave_out("rich.pretty", "attr")
