/* Copies between private memory and rows of a lane; racing copies are allowed; validation rejects them. */
#include <string.h>

#include "core.h"

/* From this size on, the C library's copy is faster than a loop over words. A build for a thread sanitizer,
 * which reports that copy as a race, sets this above any row's size. */
#ifndef MC_OPAQUE_BYTES
#define MC_OPAQUE_BYTES 256
#endif

/* Called through a volatile pointer, the copy is opaque: the compiler can neither split it into repeated
 * loads nor move it across the fences around it. */
static void *(*volatile const mc_opaque_copy)(void *, const void *, size_t) = memcpy;

#ifdef __x86_64__
/* From this size on, where rows have left the caches, the string instruction is faster still: it does not
 * read the lines that it overwrites. The fences around a copy order it too. */
#define MC_STRING_BYTES (1 << 20)

__attribute__((noinline)) static void mc_string_copy(void *to, const void *from, uint64_t size) {
    uint64_t words = size / 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
    mc_opaque_copy(to, from, size % 8);
}
#else
#define MC_STRING_BYTES UINT64_MAX
#define mc_string_copy mc_opaque_copy
#endif

void mc_copy_in(uint8_t *row, const void *source, uint64_t size) {
    const uint8_t *from = source;
    if (size >= MC_OPAQUE_BYTES) {
        if (size >= MC_STRING_BYTES)
            mc_string_copy(row, from, size);
        else
            mc_opaque_copy(row, from, size);
        return;
    }
    for (; size >= 8; size -= 8, row += 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        mc_store_row_word((mc_word *)(void *)row, word);
    }
    for (; size > 0; size--)
        mc_store_row_byte((mc_byte *)(void *)row++, *from++);
}

void mc_copy_out(void *dest, const uint8_t *row, uint64_t size) {
    uint8_t *to = dest;
    if (size >= MC_OPAQUE_BYTES) {
        if (size >= MC_STRING_BYTES)
            mc_string_copy(to, row, size);
        else
            mc_opaque_copy(to, row, size);
        return;
    }
    for (; size >= 8; size -= 8, row += 8, to += 8) {
        uint64_t word = mc_load_row_word((mc_word *)(void *)row);
        memcpy(to, &word, 8);
    }
    for (; size > 0; size--)
        *to++ = mc_load_row_byte((mc_byte *)(void *)row++);
}
