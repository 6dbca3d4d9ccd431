"""OpenTelemetryObserver."""
