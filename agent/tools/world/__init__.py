"""Tools that touch the world: files of a workspace, commands, pages. None is on by default.

`supervisor.py` and the workers run in processes of their own, started by `processes.py` without the
packages of Parley: they, and what they import, use the standard library alone.
"""
