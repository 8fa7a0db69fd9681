"""A cluster on this machine: PostgreSQL, replicas of `parley run`, a balancer (`make cluster`)."""
