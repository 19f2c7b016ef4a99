"""The path of examples, from a published address to a batch on a device."""
