"""Looking into a model: what its features do, why one document stands above another, what else its scores could be.

``docs/inspecting.md`` has the formulas and their sources.
"""
