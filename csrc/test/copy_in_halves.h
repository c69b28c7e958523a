/* For the one file of a library that defines the points: a copy, with a point before each of its halves. */
#ifndef MC_COPY_IN_HALVES_H
#define MC_COPY_IN_HALVES_H

#include "crash_points.h"
#undef memcpy

void *mc_copy_in_halves(void *to, const void *from, size_t size) {
    size_t half = size / 2;
    if (size < 256) /* within private memory; rows so short go word by word */
        return memcpy(to, from, size);
    mc_point(MC_POINT_COPY);
    memcpy(to, from, half);
    mc_point(MC_POINT_COPY);
    memcpy((char *)to + half, (const char *)from + half, size - half);
    return to;
}

#endif
