"""Metrics and traces: what the gateway tells Prometheus and OpenTelemetry of itself."""
