/* Rows whose every word follows from the ticket, so that a copy of one says whether it is whole. */
#ifndef MC_TEST_ROWS_H
#define MC_TEST_ROWS_H

#include <stdint.h>
#include <string.h>

/* ticket, ticket * odd + i for each further word, the sum of them all; the low bytes of the ticket at the
 * end. */
static inline void fill(uint8_t *row, uint64_t size, uint64_t ticket) {
    uint64_t words = size / 8, sum = 0;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word = i == 0 ? ticket : i + 1 < words ? ticket * UINT64_C(0x9E3779B97F4A7C15) + i : sum;
        memcpy(row + 8 * i, &word, 8);
        sum += word;
    }
    memcpy(row + 8 * words, &ticket, size % 8);
}

static inline int whole(const uint8_t *row, uint64_t size, uint64_t ticket) {
    uint64_t words = size / 8, sum = 0, word = 0, first;
    memcpy(&first, row, 8);
    for (uint64_t i = 0; i + 1 < words; i++) {
        memcpy(&word, row + 8 * i, 8);
        sum += word;
    }
    memcpy(&word, row + 8 * (words - 1), 8);
    return first == ticket && word == (words > 1 ? sum : ticket) &&
           !memcmp(row + 8 * words, &ticket, size % 8);
}

#endif
