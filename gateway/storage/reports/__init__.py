"""Reports for people: costs, usage, histories, tool calls."""
