"""Learning-rate landscapes of a study, and the laws of its best rates."""
