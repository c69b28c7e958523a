/* The floor of a random draw: the plainest loop that asks for each row a while before it copies a batch's
 * part of it. PIECES is what is copied from a row, or from behind it: {offset, size}, ... */
#include <stdint.h>
#include <string.h>

enum { AHEAD = 16, LINE = 64, MOST_LINES = 8 };

static const struct piece {
    uint64_t offset, size;
} pieces[] = {PIECES};

enum { COUNT = sizeof pieces / sizeof *pieces };

static inline void ask(const uint8_t *row) {
    for (uint64_t k = 0; k < COUNT; k++) {
        const uint8_t *piece = row + pieces[k].offset;
        for (uint64_t at = 0; at < pieces[k].size && at < MOST_LINES * LINE; at += LINE)
            __builtin_prefetch(piece + at);
        __builtin_prefetch(piece + pieces[k].size - 1);
    }
}

/* Copies the pieces of each of n rows of a ring, which begin at `places`. */
void random_copies(uint8_t *to, const uint8_t *ring, const int64_t *places, uint64_t n) {
    for (uint64_t i = 0; i < n + AHEAD; i++) {
        if (i < n)
            ask(ring + places[i]);
        for (uint64_t k = 0; i >= AHEAD && k < COUNT; k++) {
            memcpy(to, ring + places[i - AHEAD] + pieces[k].offset, pieces[k].size);
            to += pieces[k].size;
        }
    }
}
