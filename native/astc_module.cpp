// The binding of the decoder of ASTC textures.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "astc.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

size_t blocks_of(size_t texels, size_t side) { return texels / side + (texels % side != 0); }

void decode(Matrix<const uint8_t> blocks, size_t width, size_t height, float scale, float zero, Matrix<float> out,
            Matrix<uint8_t> illegal) {
    require(width >= 4 && width <= 12 && height >= 4 && height <= 12, "a block has 4 to 12 texels each way");
    const size_t down = blocks_of(out.shape(0), height), across = blocks_of(out.shape(1), width);
    require(blocks.shape(0) == down && blocks.shape(1) == across * 16, "blocks cover the image");
    require(illegal.shape(0) == down && illegal.shape(1) == across, "a block has one flag");
    const uint8_t* from = blocks.data();
    const Image image{out.data(), out.shape(0), out.shape(1)};
    uint8_t* flags = illegal.data();
    nb::gil_scoped_release release;
    astc_decode(from, width, height, scale, zero, image, flags);
}

}  // namespace

void bind_astc(nb::module_& module) {
    module.def("astc_decode", decode, "blocks"_a.noconvert(), "width"_a, "height"_a, "scale"_a, "zero"_a, "out"_a.noconvert(),
               "illegal"_a.noconvert());
}

}  // namespace flyweight
