"""What the user builds."""
