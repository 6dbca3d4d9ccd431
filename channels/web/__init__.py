"""The Flask app. Given what stores turns; imports neither workers nor config."""
