/* Rows whose every word follows from the ticket, so that a copy of one says whether it is whole. In Python:
 * marlcore/testing/rows.py. */
#ifndef MC_TEST_ROWS_H
#define MC_TEST_ROWS_H

#include <stdint.h>
#include <string.h>

/* The ticket, then ticket * odd + i as word i; the low bytes of the ticket at the end. */
static inline uint64_t word_of(uint64_t ticket, uint64_t i) {
    return i == 0 ? ticket : ticket * UINT64_C(0x9E3779B97F4A7C15) + i;
}

static inline void fill(uint8_t *row, uint64_t size, uint64_t ticket) {
    for (uint64_t i = 0; i < size / 8; i++) {
        uint64_t word = word_of(ticket, i);
        memcpy(row + 8 * i, &word, 8);
    }
    memcpy(row + size / 8 * 8, &ticket, size % 8);
}

static inline int whole(const uint8_t *row, uint64_t size, uint64_t ticket) {
    uint64_t word, wrong = 0;
    for (uint64_t i = 0; i < size / 8; i++) {
        memcpy(&word, row + 8 * i, 8);
        wrong |= word ^ word_of(ticket, i);
    }
    return wrong == 0 && !memcmp(row + size / 8 * 8, &ticket, size % 8);
}

#endif
