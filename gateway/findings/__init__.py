"""What is wrong, said once: for doctor, alerts, status, the console, the start and `/readyz`."""
