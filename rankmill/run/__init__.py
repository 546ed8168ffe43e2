"""The scheduled run: the stages of a configuration, each done once for the same input, and told of as it happens."""
