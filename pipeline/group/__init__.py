"""Group rows by query in bounded memory and in canonical order, for any order of the input."""
