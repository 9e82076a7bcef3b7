"""Environment families."""
