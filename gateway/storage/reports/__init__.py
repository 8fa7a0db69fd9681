"""What is read for people: costs, usage, histories, the audit trail."""
