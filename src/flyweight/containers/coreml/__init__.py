"""Core ML packages: a program whose constants lie in weight.bin, plain or behind `constexpr` operations that decode them."""
