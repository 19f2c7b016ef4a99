"""What was asked, and all that follows from it before the first step."""
