"""Pure functions the learners are composed from."""
