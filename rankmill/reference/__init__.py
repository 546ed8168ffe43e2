"""The pages of reference in docs/, written from the options themselves."""
