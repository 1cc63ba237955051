"""Hubs and clients as processes of their own, at their owners' sites."""
