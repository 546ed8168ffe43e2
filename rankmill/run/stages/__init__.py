"""The stages of the run, one a file, in the order of ``rankmill.run.chain.STAGES``."""
