"""Logs of clicks: what users were shown and what they clicked, and what follows from it about documents and ranks."""
