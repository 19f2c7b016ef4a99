"""Language and translation models, and VGG, one file a family."""
