"""Squish's npy-dir: a directory of one .npy file per stored array. `npy_directory` lists the parts of the package."""
