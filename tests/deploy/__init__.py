"""What Parley is deployed with: Dockerfile, compose, Kubernetes, the cluster on one machine."""
