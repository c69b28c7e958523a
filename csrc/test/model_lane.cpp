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
static long model_futex(long, uint32_t *word, int operation, Expected expected, const void *, const void *, int);
#define syscall model_futex

#include "../copy.c"
#include "../futex.c"
#include "../lane.c"

enum { CAPACITY = 2, WORDS = 2, TICKETS = 4, LARGEST = 3 };

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

model_plain &model_plain_at(const void *address) { return model_memory::current->plain[row_word(address)]; }

/* The kernel compares and goes to sleep in one step with respect to wakes. No time-out: a wake-up lost is a
 * deadlock found. */
template <typename Expected>
static long model_futex(long, uint32_t *word, int operation, Expected expected, const void *, const void *, int) {
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

static struct mc_lane lane_of(uint64_t capacity) {
    struct mc_lane lane = {};
    lane.capacity = capacity;
    lane.counters = (uint8_t *)space.counters;
    lane.event = (uint8_t *)space.event;
    lane.columns = 1;
    lane.column[0].base = (uint8_t *)space.rows;
    lane.column[0].size = lane.column[0].stride = sizeof space.rows[0];
    return lane;
}

/* Row t holds t + 1 in each word. */
static void append(struct mc_lane *lane, uint64_t n) {
    uint64_t rows[TICKETS * WORDS];
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
    uint64_t rows[LARGEST][WORDS];
    int64_t lanes[LARGEST] = {}, tickets[LARGEST];
    uint8_t ok[LARGEST];
    int64_t lo, hi;
    int error = mc_lanes_window(lane, 1, &lo, &hi);
    RL_ASSERT(error == 0 && hi - lo <= (int64_t)lane->capacity);
    for (int64_t t = lo; t < hi; t++) {
        tickets[t - lo] = t;
        mc_copy_out(rows[t - lo], lane->column[0].base + t % lane->capacity * sizeof rows[0], sizeof rows[0]);
    }
    mc_lanes_validate(lane, (uint64_t)(hi - lo), lanes, tickets, ok);
    for (int64_t t = lo; t < hi; t++)
        if (ok[t - lo])
            expect_whole(rows[t - lo], (uint64_t)t);
}

template <int capacity, int appends, int rows>
struct sampler : rl::test_suite<sampler<capacity, appends, rows>, 2> {
    model_memory memory;
    void thread(unsigned index) {
        struct mc_lane lane = lane_of(capacity);
        if (index == 1) {
            sample(&lane);
            return;
        }
        for (int i = 0; i < appends; i++)
            append(&lane, rows);
    }
};

/* What a subscriber does: the newest row, whole or not at all, and never an older one than before. */
template <int capacity> struct newest : rl::test_suite<newest<capacity>, 2> {
    model_memory memory;
    void thread(unsigned index) {
        struct mc_lane lane = lane_of(capacity);
        if (index == 0) {
            for (int i = 0; i < TICKETS - 1; i++)
                append(&lane, 1);
            return;
        }
        int64_t seen = 0;
        for (int i = 0; i < 2; i++) {
            uint64_t row[WORDS];
            int64_t version = mc_lane_read_newest(&lane, row);
            RL_ASSERT(version == -ESTALE || version >= seen);
            if (version > 0) {
                expect_whole(row, (uint64_t)version - 1);
                seen = version;
            }
        }
    }
};

/* A writer dies anywhere in an append of two rows; the kernel hands the lane to a successor. */
struct takeover : rl::test_suite<takeover, 2> {
    model_memory memory;
    void thread(unsigned index) {
        struct mc_lane lane = lane_of(CAPACITY);
        if (index == 1) {
            sample(&lane);
            return;
        }
        uint64_t first, words[WORDS] = {98, 99};
        append(&lane, 2);
        mc_lane_reserve(&lane, 2, &first);
        unsigned written = rl::rand(2 * WORDS + 1);
        for (unsigned i = 0; i < written; i++)
            mc_store_row_word(&space.rows[i / WORDS][i % WORDS], words[i % WORDS]);
        append(&lane, 1);
    }
};

/* Readers sleep until two rows are there; nobody wakes them but the writer. */
template <int readers> struct waiting : rl::test_suite<waiting<readers>, readers + 1> {
    model_memory memory;
    void thread(unsigned index) {
        struct mc_lane lane = lane_of(CAPACITY);
        if (index == 0) {
            append(&lane, 1);
            append(&lane, 1);
            return;
        }
        for (;;) {
            uint32_t seen = mc_event_prepare(lane.event);
            if (mc_lane_committed(&lane) >= 2)
                return;
            mc_event_wait(lane.event, seen, 0);
        }
    }
};

template <typename Scenario>
static bool explore(const char *name, rl::scheduler_type_e scheduler, unsigned iterations) {
    std::ostringstream log;
    rl::test_params params;
    params.search_type = scheduler;
    params.iteration_count = iterations;
    params.output_stream = params.progress_stream = &log;
    params.execution_depth_limit = 4000;
    bool passed = rl::simulate<Scenario>(params);
    std::cout << name << ": " << params.stop_iteration << " executions, "
              << (passed ? "no failure" : rl::test_result_str(params.test_result)) << std::endl;
    return passed;
}

/* 0 iterations: the search is exhaustive. */
static const struct {
    const char *name;
    bool (*explore)(const char *, rl::scheduler_type_e, unsigned);
    rl::scheduler_type_e scheduler;
    unsigned iterations;
} scenarios[] = {
    {"sample", explore<sampler<CAPACITY, TICKETS, 1>>, rl::sched_full, 0},
    {"sample_pairs", explore<sampler<CAPACITY, TICKETS / 2, 2>>, rl::sched_full, 0},
    {"sample_stale", explore<sampler<CAPACITY, TICKETS, 1>>, rl::sched_random, 100000},
    {"newest_of_1", explore<newest<1>>, rl::sched_full, 0},
    {"newest_of_2", explore<newest<2>>, rl::sched_full, 0},
    {"newest_of_3", explore<newest<3>>, rl::sched_full, 0},
    {"takeover", explore<takeover>, rl::sched_full, 0},
    {"waiting", explore<waiting<1>>, rl::sched_full, 0},
    {"waiting_2", explore<waiting<2>>, rl::sched_random, 100000},
};

int main(int argc, char **argv) {
    bool passed = true;
    for (const auto &scenario : scenarios) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= strcmp(argv[i], scenario.name) == 0;
        if (wanted)
            passed &= scenario.explore(scenario.name, scenario.scheduler, scenario.iterations);
    }
    return passed ? 0 : 1;
}
