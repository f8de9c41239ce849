"""What the gateway tells: metrics to Prometheus, signals to the operator."""
