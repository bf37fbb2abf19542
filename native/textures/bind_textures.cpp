// The binding of the decoder of ASTC textures.
#include "textures/astc.hpp"
#include "binding.hpp"

namespace flyweight {

void bind_textures(nb::module_& module) {
    define(module, "astc_decode", +[](Bytes blocks, size_t width, size_t height, float scale, float zero, FloatsOut out, BytesOut illegal) {
        require(width >= 4 && width <= 12 && height >= 4 && height <= 12, "a block has 4 to 12 texels each way");
        const size_t down = divided_up(out.shape(0), height), across = divided_up(out.shape(1), width);
        require_shape(blocks, down, across * 16, "blocks cover the image");
        require_shape(illegal, down, across, "a block has one flag");
        const Image image{out.data(), out.shape(0), out.shape(1)};
        const nb::gil_scoped_release release;
        astc_decode(blocks.data(), width, height, scale, zero, image, illegal.data());
    }, "blocks", "width", "height", "scale", "zero", "out", "illegal");
}

}  // namespace flyweight
