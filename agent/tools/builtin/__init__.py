"""The tools that come with Parley, one module each."""
