"""Redis: the clients of one server, of Sentinel and of Cluster, and the runner of Lua scripts."""
