"""Real models' APIs, as strict twins that run as a process of their own, and what our providers make of them."""
