"""Model inspection: feature effects, explanations of rankings, mixtures of models, and optimality.

``docs/inspecting.md`` has the formulas and their sources.
"""
