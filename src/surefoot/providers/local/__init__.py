"""VMs that are processes or network namespaces on this machine, in a replayed market."""
