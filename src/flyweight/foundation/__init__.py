"""The foundations: errors, limits, element types, tensors, manifests and the readers of untrusted bytes and JSON."""
