"""Clouds: the port, one folder each, and the notices that their VMs get."""
