"""Files that hold what is known of the inputs of a model's matrices: our own (`docs/formats/statistics.md`) and llama.cpp's.

`known_files` opens any of them and `stored` is what is opened. Each kind has a module with its reader and its `Form`, which
says where everything lies before anything is gathered.
"""
