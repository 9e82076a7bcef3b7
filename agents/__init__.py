"""Agents: observations to tokens, tokens to actions."""
