"""Pure torch: tensors in, tensors out. No file, no clock, no event loop, no padding axis."""
