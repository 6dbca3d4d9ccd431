"""Config: the settings from the YAML, and the wiring of the parts that they choose."""
