"""Child processes: started, confined, ended with all that they started; threads that may hang."""
