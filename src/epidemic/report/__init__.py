"""Tables and figures, made from results only."""
