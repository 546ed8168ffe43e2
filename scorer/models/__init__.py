"""Models of any kind: what they have in common, their files, and their versions in a registry."""
