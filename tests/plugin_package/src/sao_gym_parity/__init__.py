"""A drifting parity task, a learner that keeps what worked, and a scenario of both."""
