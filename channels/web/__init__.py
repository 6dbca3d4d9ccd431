"""The Flask app. Given an Ingress; imports neither workers nor config."""
