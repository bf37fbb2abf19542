"""Where an output is written: staged, journalled, resumed, published, replaced."""
