"""A chat command that the product does not know."""
