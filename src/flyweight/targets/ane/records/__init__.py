"""Records of compiled programs: what the compiler emits beside the weights, as far as it is known.

    channel_groups        14 words for each group of output channels, a set for each engine
    kernel_unit           the six-section descriptor: text, and a binary reading of ours
    unit_building         the descriptor of a compressed tensor
    kernel_config         the registers that say how weights are stored
    dma_streams           the registers of the four coefficient streams, and relocations
    activation_record     33 knots of an activation function, and their evaluation
    activation_functions  the functions, and how far each record is from the truth
    activation_fit        knots and tails that no source gives
    engine_numbers        rounding to f16, and the two 8-bit floats

docs/formats/ane-records.md says of every field whether it is stated, measured, inferred or ours. Nothing here claims to be
Apple's bytes.
"""
