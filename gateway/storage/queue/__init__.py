"""Messages in the inbox, answers in the outbox, who works on them, and what was given up."""
