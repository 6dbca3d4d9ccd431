"""Wire: what imports the library that speaks to vendors. It is imported itself only when a model is first asked."""
