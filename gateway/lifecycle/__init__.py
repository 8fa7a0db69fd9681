"""What watches over the process: accounts, crashes, pruning, checks at the start."""
