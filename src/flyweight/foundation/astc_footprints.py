"""The legal blocks of ASTC in two dimensions: texels across and down."""

FOOTPRINTS = (
    *((4, 4), (5, 4), (5, 5), (6, 5), (6, 6), (8, 5), (8, 6)),
    *((8, 8), (10, 5), (10, 6), (10, 8), (10, 10), (12, 10), (12, 12)),
)
