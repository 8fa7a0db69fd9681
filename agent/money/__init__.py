"""The cost of model calls, and the billing of providers' prompt caches."""
