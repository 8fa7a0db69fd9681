"""Tools that touch the outside world: workspace files, commands, web pages."""
