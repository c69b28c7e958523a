/* Control words: counters, heartbeats and flags, each written by one process. */
#include "core.h"

static mc_word *mc_word_at(const uint8_t *words, uint64_t i) { return (mc_word *)(void *)words + i; }

int64_t mc_word_load(const uint8_t *words, uint64_t i) { return (int64_t)mc_load_word(mc_word_at(words, i)); }

int64_t mc_words_sum(const uint8_t *words, uint64_t n, uint64_t stride) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (uint64_t)mc_word_load(words + i * stride, 0);
    return (int64_t)sum;
}

void mc_word_store(uint8_t *words, uint64_t i, int64_t value) {
    mc_store_word(mc_word_at(words, i), (uint64_t)value);
}

void mc_words_store(uint8_t *words, uint64_t n, uint64_t stride, const int64_t *values) {
    for (uint64_t i = 0; i < n; i++)
        mc_word_store(words + i * stride, 0, values[i]);
}

void mc_word_add(uint8_t *words, uint64_t i, int64_t more) {
    mc_word_store(words, i, (int64_t)((uint64_t)mc_word_load(words, i) + (uint64_t)more));
}
