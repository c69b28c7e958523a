/* Control words: counters, heartbeats and flags, each written by one process. */
#include "core.h"

int64_t mc_word_load(const uint8_t *word) { return (int64_t)mc_load_word((mc_word *)(void *)word); }

void mc_word_store(uint8_t *word, int64_t value) { mc_store_word((mc_word *)(void *)word, (uint64_t)value); }
