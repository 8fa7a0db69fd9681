"""What watches over the process: its home, its accounts, crashes, checks at the start."""
