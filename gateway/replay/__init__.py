"""What `parley replay` plays with: recordings, a stage, and a report."""
