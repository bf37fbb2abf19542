"""Squish's npy-dir: a directory of one .npy file per stored array. The parts of the package are told in `container`."""
