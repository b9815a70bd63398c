"""Hosts that you already have, used as VMs over ssh."""
