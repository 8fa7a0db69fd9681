"""Convert Markdown to each platform's format, within its limits."""
