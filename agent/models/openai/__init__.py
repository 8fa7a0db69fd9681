"""Models of servers that speak OpenAI's Chat Completions."""
