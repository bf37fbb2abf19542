// Work on rows shared between the caller and a few threads that stay.
#pragma once

#include <cstddef>

namespace flyweight {

using RowWork = void (*)(const void* what, size_t first, size_t last);

// work(what, …) over all rows, in pieces of `piece` rows, by at most `threads` threads with the caller among them. Which thread
// takes which piece is left to chance, so no result may depend on it. A call made while another one has the threads
// runs on its caller alone.
void over_rows(size_t rows, size_t piece, unsigned threads, RowWork work, const void* what);

}  // namespace flyweight
