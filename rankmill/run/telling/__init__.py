"""Who watches a run: lines for people, JSON lines, a file of metrics for Prometheus, OpenLineage.

Each is an observer (`rankmill.run.events`) of its own; `rankmill.run.telling.observers` puts together what the configuration asks for.
"""
