"""The console, a chat page in the browser, and the conversation in a terminal."""
