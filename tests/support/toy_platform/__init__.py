"""A platform that the product does not have: the folder `toy` is all there is of it."""
