"""Pending: proposals that wait for a yes, and the kernel that runs each confirmed one once."""
