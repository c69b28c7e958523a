/* The tests' runner: each test is a function named as a sentence; a failed check ends the program. */
#ifndef MC_CHECK_H
#define MC_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { PAGE = 4096 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};
static struct test *first_test, **last_test __attribute__((unused)) = &first_test;

/* TEST(a_sentence) { ... } is run by `run_tests`, in the order of the file. */
#define TEST(function)                                                                                       \
    static void function(void);                                                                              \
    static struct test test_##function = {#function, function, NULL};                                        \
    __attribute__((constructor)) static void add_##function(void) {                                          \
        *last_test = &test_##function;                                                                       \
        last_test = &test_##function.next;                                                                   \
    }                                                                                                        \
    static void function(void)

static inline int run_tests(void) {
    for (const struct test *test = first_test; test; test = test->next) {
        puts(test->name);
        fflush(stdout);
        test->run();
    }
    return 0;
}

/* The first of n lanes side by side in memory of their own, each allocation apart, so that a sanitizer sees
 * every step outside. */
static inline struct mc_lane make_lanes(uint64_t n, uint64_t capacity, uint64_t columns,
                                        const uint64_t *sizes) {
    struct mc_lane lane = {.capacity = capacity, .columns = columns};
    lane.counters = aligned_alloc(PAGE, (n * MC_LINE + PAGE - 1) / PAGE * PAGE); /* whole pages, for msync */
    CHECK(lane.counters);
    memset(lane.counters, 0, n * MC_LINE);
    lane.event = calloc(1, MC_LINE);
    for (uint64_t k = 0; k < columns; k++) {
        struct mc_column *column = &lane.column[k];
        column->size = sizes[k];
        column->stride = (sizes[k] + 7) / 8 * 8;
        column->every = 1;
        column->base = calloc(n * capacity, column->stride);
        CHECK(column->base);
    }
    CHECK(lane.event);
    return lane;
}

static inline struct mc_lane make_lane(uint64_t capacity, uint64_t columns, const uint64_t *sizes) {
    return make_lanes(1, capacity, columns, sizes);
}

/* A lane, or lanes side by side by their first. */
static inline void free_lane(struct mc_lane *lane) {
    for (uint64_t k = 0; k < lane->columns; k++)
        free(lane->column[k].base);
    free(lane->counters);
    free(lane->event);
}

static inline void set_counters(struct mc_lane *lane, uint64_t committed, uint64_t reserved) {
    mc_store_committed(mc_counters_of(lane), committed);
    mc_store_reserved(mc_counters_of(lane), reserved);
}

static inline uint64_t committed_of(const struct mc_lane *lane) {
    return mc_load_committed(mc_counters_of(lane));
}

static inline uint64_t reserved_of(const struct mc_lane *lane) {
    return mc_load_reserved(mc_counters_of(lane));
}

#endif
