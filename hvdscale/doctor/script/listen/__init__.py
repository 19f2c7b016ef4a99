"""The listeners that write a rank's record."""
