"""Training of nets: RankNet and LambdaRank as first published, and a small modern net."""
