"""Repository tasks: what they are, how a fix is graded, where they come from."""
