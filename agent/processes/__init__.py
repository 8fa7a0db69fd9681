"""Child processes: starting, confining and ending them with their descendants; hanging threads."""
