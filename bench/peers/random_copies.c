/* The floor of a random draw: what a batch holds, copied from random places by the plainest loop that asks for
 * each place a while before it copies it. */
#include <stdint.h>
#include <string.h>

enum { AHEAD = 16, LINE = 64, MOST_LINES = 8 };

static void ask(const uint8_t *row, uint64_t size) {
    for (uint64_t at = 0; at < size && at < MOST_LINES * LINE; at += LINE)
        __builtin_prefetch(row + at);
    __builtin_prefetch(row + size - 1);
}

/* Copies `size` bytes from each of `count` places of a ring, offsets in bytes. */
void random_copies(uint8_t *to, const uint8_t *ring, const int64_t *places, uint64_t count, uint64_t size) {
    for (uint64_t i = 0; i < AHEAD && i < count; i++)
        ask(ring + places[i], size);
    for (uint64_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            ask(ring + places[i + AHEAD], size);
        memcpy(to + i * size, ring + places[i], size);
    }
}
