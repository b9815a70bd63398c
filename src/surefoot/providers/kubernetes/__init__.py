"""Pods on preemptible Kubernetes nodes."""
