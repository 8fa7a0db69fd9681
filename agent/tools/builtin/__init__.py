"""The tools shipped with Parley, one module each."""
