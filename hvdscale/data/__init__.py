"""Examples, from a published address to a batch on a device."""
