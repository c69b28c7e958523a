/* Included before everything else, this makes a build of the core whose process can be killed at its k-th
 * point, or whose k-th system call fails. A point is a store to shared memory or a system call, Python's
 * included:
 *
 *     an atomic store, exchange or addition      before it
 *     a copy of a long row                       before it and in its middle
 *     a system call of any code                  before it
 *
 * What is behind one point is before the next one, so nothing lies between two that a death could still show.
 * Counting begins with mc_points_arm; the system calls of the process pass through a signal handler from then
 * on. */
#ifndef MC_CRASH_POINTS_H
#define MC_CRASH_POINTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define MC_POINT_STORE (-1)
#define MC_POINT_COPY (-2)

/* Counts from 0. The point number `at` kills the process when error is 0; else only system calls count, and
 * that one fails with this error. report, in memory that outlives the process: points passed, and what number
 * `at` was, or the last one: a system call's number or one of the above. 0, -errno. */
int mc_points_arm(int64_t at, int error, volatile int64_t *report);
/* System calls and stores are counted no more. */
void mc_points_disarm(void);

void mc_point(int64_t what);
void *mc_copy_in_halves(void *to, const void *from, size_t size);

static inline int mc_exchange_if(_Atomic uint32_t *to, uint32_t *expected, uint32_t value) {
    int same = *to == *expected;
    if (same)
        *to = value;
    else
        *expected = *to;
    return same;
}

/* Stronger orders than the core asks for: a process that dies alone cannot tell. */
#undef atomic_store_explicit
#undef atomic_fetch_add_explicit
#undef atomic_compare_exchange_weak_explicit
#define atomic_store_explicit(to, value, order) (mc_point(MC_POINT_STORE), (void)(*(to) = (value)))
#define atomic_fetch_add_explicit(to, value, order) (mc_point(MC_POINT_STORE), (void)(*(to) += (value)))
#define atomic_compare_exchange_weak_explicit(to, expected, value, order, failure)                           \
    (mc_point(MC_POINT_STORE), mc_exchange_if(to, expected, value))
#define memcpy mc_copy_in_halves

#endif
