"""How numbers, names, columns and progress are written for people."""
