"""What hvdscale-plan shows."""
