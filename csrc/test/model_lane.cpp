/* Explores the core's interleavings and weakly ordered memory with Relacy (Debian: relacy-dev).
 *
 * atomics.h, copy.c, lane.c and futex.c are compiled as they are; model/stdatomic.h puts Relacy beneath them.
 * Usage: model_lane [scenario ...]; the status is 1 when one of them fails. Build: see mutants.py. */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "model/stdatomic.h"

template <typename Expected>
static long model_futex(long, uint32_t *word, int operation, Expected expected, const void *, const void *,
                        int);
#define syscall model_futex

#include "../copy.c"
#include "../futex.c"
#include "../lane.c"

enum { WORDS = 2, MOST_ROWS = 2, LARGEST = 3 };

/* The lane's memory: never read or written, its addresses name the cells. */
static struct {
    uint64_t counters[2];
    uint32_t event[2];
    uint64_t rows[LARGEST][WORDS];
} space;

struct model_memory {
    model_atomic counters[2];
    model_atomic event[2];
    model_atomic rows[LARGEST * WORDS];
    model_plain plain[LARGEST * WORDS];
    bool sleeping = false;
    rl::mutex kernel;
    rl::condition_variable sleepers;

    model_memory();
    ~model_memory() { current = NULL; }
    static model_memory *current;
};
model_memory *model_memory::current;

model_memory::model_memory() {
    current = this;
    for (int i = 0; i < 2; i++) {
        counters[i].store(0, rl::mo_relaxed, RL_INFO);
        event[i].store(0, rl::mo_relaxed, RL_INFO);
    }
    for (int i = 0; i < LARGEST * WORDS; i++) {
        rows[i].store(0, rl::mo_relaxed, RL_INFO);
        plain[i](RL_INFO).store(0);
    }
}

static size_t row_word(const void *address) {
    size_t i = (size_t)((const uint64_t *)address - &space.rows[0][0]);
    RL_VERIFY(i < LARGEST * WORDS);
    return i;
}

model_atomic &model_atomic_at(const void *address) {
    for (int i = 0; i < 2; i++) {
        if (address == &space.counters[i])
            return model_memory::current->counters[i];
        if (address == &space.event[i])
            return model_memory::current->event[i];
    }
    return model_memory::current->rows[row_word(address)];
}

/* The writer alone, which is thread 0, stores the counters. Nobody announces himself unless readers sleep. */
bool model_known(const void *address, uint64_t *value) {
    model_memory *m = model_memory::current;
    for (int i = 0; i < 2; i++)
        if (address == &space.counters[i] && rl::thread_index() == 0) {
            *value = m->counters[i].debug_value();
            return true;
        }
    *value = 0;
    return address == &space.event[0] && !m->sleeping;
}

model_plain &model_plain_at(const void *address) { return model_memory::current->plain[row_word(address)]; }

/* The kernel compares and goes to sleep in one step with respect to wakes. No time-out: a wake-up lost is a
 * deadlock found. */
template <typename Expected>
static long model_futex(long, uint32_t *word, int operation, Expected expected, const void *, const void *,
                        int) {
    model_memory *m = model_memory::current;
    long result = 0;
    m->kernel.lock(RL_INFO);
    if (operation == FUTEX_WAKE) {
        m->sleepers.notify_all(RL_INFO);
    } else if (atomic_load_explicit(word, rl::mo_seq_cst) != (uint32_t)expected) {
        errno = EAGAIN;
        result = -1;
    } else {
        m->sleepers.wait(m->kernel, RL_INFO);
    }
    m->kernel.unlock(RL_INFO);
    return result;
}

static struct mc_lane lane_of(uint64_t capacity, uint64_t columns) {
    struct mc_lane lane = {};
    lane.capacity = capacity;
    lane.counters = (uint8_t *)space.counters;
    lane.event = (uint8_t *)space.event;
    lane.columns = columns;
    lane.column[0].base = (uint8_t *)space.rows;
    lane.column[0].every = 1;
    lane.column[0].size = lane.column[0].stride = sizeof space.rows[0];
    return lane;
}

/* One search: the scenario's parameters. 0 iterations: all executions. */
struct search {
    const char *name;
    void (*run)(rl::test_params &);
    void (*thread)(unsigned index);
    uint64_t capacity;
    int appends;
    uint64_t rows;
    int reads;
    unsigned iterations;
};
static search now;

/* Row t holds t + 1 in each word. */
static void append(struct mc_lane *lane, uint64_t n) {
    uint64_t rows[MOST_ROWS * WORDS];
    uint64_t first = (uint64_t)mc_lane_committed(lane);
    for (uint64_t i = 0; i < n * WORDS; i++)
        rows[i] = first + i / WORDS + 1;
    const void *sources[] = {rows};
    int error = mc_lane_append(lane, n, sources);
    RL_ASSERT(error == 0);
}

static void expect_whole(const uint64_t *row, uint64_t ticket) {
    for (int i = 0; i < WORDS; i++)
        RL_ASSERT(row[i] == ticket + 1);
}

/* What a sampler does: a window, copies, one validation. */
static void sample(const struct mc_lane *lane) {
    uint64_t row[WORDS];
    int64_t lo, hi, which = 0;
    uint8_t ok;
    int error = mc_lanes_window(lane, 1, &lo, &hi);
    RL_ASSERT(error == 0 && lo <= hi && hi - lo <= (int64_t)lane->capacity);
    if (lo == hi)
        return;
    int64_t t = lo + rl::rand((unsigned)(hi - lo));
    mc_copy_out(row, lane->column[0].base + t % lane->capacity * sizeof row, sizeof row);
    mc_lanes_validate(lane, 1, &which, &t, &ok);
    if (ok)
        expect_whole(row, (uint64_t)t);
}

static void sampler(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, 1);
    if (index == 1)
        sample(&lane);
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, now.rows);
}

/* What a subscriber does: the newest row, whole or not at all, and never an older one than before. */
static void subscriber(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, 1);
    int64_t seen = 0;
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, now.rows);
    for (int i = 0; index == 1 && i < now.reads; i++) {
        uint64_t row[WORDS];
        int64_t version = mc_lane_read_newest(&lane, row);
        RL_ASSERT(version == -ESTALE || version >= seen);
        if (version > 0) {
            expect_whole(row, (uint64_t)version - 1);
            seen = version;
        }
    }
}

/* A writer dies anywhere in an append of two rows; the kernel hands the lane to a successor. */
static void takeover(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, 1);
    uint64_t first;
    if (index == 1) {
        sample(&lane);
        return;
    }
    append(&lane, 2);
    int error = mc_lane_reserve(&lane, 2, &first);
    RL_ASSERT(error == 0 && first == 2);
    unsigned written = rl::rand(2 * WORDS + 1);
    for (unsigned i = 0; i < written; i++)
        mc_store_row_word(&space.rows[i / WORDS][i % WORDS], 99);
    append(&lane, 1);
}

/* Readers sleep until all rows are there; nobody wakes them but the writer. */
static void sleeper(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, 0);
    model_memory::current->sleeping = true;
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, now.rows);
    while (index > 0) {
        uint32_t seen = mc_event_prepare(lane.event);
        if (mc_lane_committed(&lane) >= now.appends)
            return;
        mc_event_wait(lane.event, seen, 0);
    }
}

template <int threads> struct world : rl::test_suite<world<threads>, threads> {
    model_memory memory;
    void thread(unsigned index) { now.thread(index); }
};

template <int threads, template <rl::thread_id_t> class scheduler> static void run(rl::test_params &params) {
    std::ostream state(NULL);
    params.test_result = rl::run_test<world<threads>, scheduler<threads>>(params, state, false);
}

/* The mutants need no exhaustive search and are built without it: the compiler's time goes there. */
#ifdef MODEL_QUICK
#define EXHAUSTIVE run<2, rl::random_scheduler>
enum { ALL = 1000000 };
#else
#define EXHAUSTIVE run<2, rl::full_search_scheduler>
enum { ALL = 0 };
#endif
#define RANDOM run<2, rl::random_scheduler>

/* An exhaustive search lets each load see the newest value but one at the oldest, a random one goes further.
 */
static const search searches[] = {
    {"sample", EXHAUSTIVE, sampler, 2, 4, 1, 1, ALL},
    {"sample_pairs", EXHAUSTIVE, sampler, 2, 2, 2, 1, ALL},
    {"sample_stale", RANDOM, sampler, 2, 4, 1, 1, 200000},
    {"newest_of_1", EXHAUSTIVE, subscriber, 1, 2, 1, 2, ALL},
    {"newest_of_2", EXHAUSTIVE, subscriber, 2, 3, 1, 1, ALL},
    {"newest_of_3", RANDOM, subscriber, 3, 6, 1, 2, 200000},
    {"takeover", EXHAUSTIVE, takeover, 2, 0, 0, 1, ALL},
    {"sleep", RANDOM, sleeper, 2, 2, 1, 1, 200000},
#ifndef MODEL_QUICK
    {"sleep_two", run<3, rl::random_scheduler>, sleeper, 2, 2, 1, 1, 200000},
#endif
#ifdef MODEL_LONG
    {"sleep_long", EXHAUSTIVE, sleeper, 2, 1, 1, 1, ALL},
#endif
};

static bool explore(const search &s) {
    std::ostream log(NULL);
    rl::test_params params;
    params.iteration_count = s.iterations;
    params.output_stream = params.progress_stream = &log;
    now = s;
    s.run(params);
    bool passed = params.test_result == rl::test_result_success;
    std::cout << s.name << ": " << params.stop_iteration << " executions, "
              << (passed ? "no failure" : rl::test_result_str(params.test_result)) << std::endl;
    return passed;
}

int main(int argc, char **argv) {
    bool passed = true;
    for (const search &s : searches) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= strcmp(argv[i], s.name) == 0;
        if (wanted)
            passed &= explore(s);
    }
    return passed ? 0 : 1;
}
