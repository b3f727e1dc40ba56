"""Paying through a service in another process: the service, its clients, and what may fail."""
