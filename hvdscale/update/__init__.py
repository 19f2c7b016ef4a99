"""One optimizer update from the exact mean gradient of the global batch."""
