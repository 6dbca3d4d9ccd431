"""The Flask app, which serves all channels. The caller passes in what stores turns."""
