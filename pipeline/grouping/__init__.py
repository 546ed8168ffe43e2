"""Bring the rows of a query together, wherever they stood in the input, in bounded memory and in canonical order."""
