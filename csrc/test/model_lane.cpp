/* Explores the core's interleavings and weakly ordered memory with Relacy (Debian: relacy-dev).
 *
 * copy.c, lane.c, futex.c and words.c are compiled as they are, with model/stdatomic.h in place of the
 * compiler's: what they do to shared words ends up here. The kernel's futex is modelled. Build: see
 * mutants.py.
 *
 * Usage: model_lane [--random] [scenario ...]; the status is 1 when one of them fails. */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>

#include <relacy/relacy.hpp>

/* Relacy renames these for code written against it; the core is not. */
#undef memory_order_relaxed
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef new
#undef delete
#undef assert
#undef errno
#define errno (*__errno_location())

#include <assert.h>

extern "C" {
#include "../core.h"
#include "rows.h"
long model_futex(long number, ...);
}

static_assert((int)rl::mo_relaxed == memory_order_relaxed && (int)rl::mo_acquire == memory_order_acquire &&
                  (int)rl::mo_release == memory_order_release &&
                  (int)rl::mo_acq_rel == memory_order_acq_rel && (int)rl::mo_seq_cst == memory_order_seq_cst,
              "the stand-in's orders are Relacy's");

enum { WORDS = 2, MOST_ROWS = 2, LARGEST = 3, COUNTERS = sizeof(struct mc_counters) / sizeof(mc_word) };

/* The lane's memory: never read or written, its addresses name the cells. */
static struct {
    uint64_t counters[COUNTERS];
    uint32_t event[2];
    uint64_t slot;
    uint64_t rows[LARGEST][WORDS];
} space;

struct model_memory {
    rl::atomic<uint64_t> counters[COUNTERS];
    rl::atomic<uint64_t> event[2];
    rl::atomic<uint64_t> slot;
    rl::atomic<uint64_t> rows[LARGEST * WORDS];
    rl::var<uint64_t> plain[LARGEST * WORDS];
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
    for (int i = 0; i < COUNTERS; i++)
        counters[i].store(0, rl::mo_relaxed, RL_INFO);
    for (int i = 0; i < 2; i++)
        event[i].store(0, rl::mo_relaxed, RL_INFO);
    slot.store(0, rl::mo_relaxed, RL_INFO);
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

static rl::atomic<uint64_t> &cell(const void *address) {
    model_memory *m = model_memory::current;
    for (int i = 0; i < COUNTERS; i++)
        if (address == &space.counters[i])
            return m->counters[i];
    for (int i = 0; i < 2; i++)
        if (address == &space.event[i])
            return m->event[i];
    return address == &space.slot ? m->slot : m->rows[row_word(address)];
}

/* Loads that can have one result only and need no exploring: the writer alone, which is thread 0, stores the
 * counters, and nobody announces himself unless readers sleep. */
static bool known(const void *address, uint64_t *value) {
    model_memory *m = model_memory::current;
    for (int i = 0; i < COUNTERS; i++)
        if (address == &space.counters[i] && rl::thread_index() == 0) {
            *value = m->counters[i].debug_value();
            return true;
        }
    *value = 0;
    return address == &space.event[0] && !m->sleeping;
}

void model_store(const void *to, uint64_t value, int order) {
    cell(to).store(value, (rl::memory_order)order, RL_INFO);
}
uint64_t model_load(const void *from, int order) {
    uint64_t value;
    return known(from, &value) ? value : cell(from).load((rl::memory_order)order, RL_INFO);
}
uint64_t model_fetch_add(const void *to, uint64_t value, int order) {
    return cell(to)(RL_INFO).fetch_add(value, (rl::memory_order)order);
}
int model_compare_exchange(const void *to, uint32_t *expected, uint64_t value, int order) {
    uint64_t found = *expected;
    bool exchanged =
        cell(to)(RL_INFO).compare_exchange_weak(found, value, (rl::memory_order)order, rl::mo_relaxed);
    *expected = (uint32_t)found;
    return exchanged;
}
void model_fence(int order) { (rl::atomic_thread_fence)((rl::memory_order)order, RL_INFO); }
void model_plain_store(const void *to, uint64_t value) {
    model_memory::current->plain[row_word(to)](RL_INFO).store(value);
}
uint64_t model_plain_load(const void *from) {
    return model_memory::current->plain[row_word(from)](RL_INFO).load();
}

/* The kernel compares and goes to sleep in one step with respect to wakes. No time-out: a wake-up lost is a
 * deadlock found. */
long model_futex(long, ...) {
    va_list arguments;
    va_start(arguments, 0);
    const uint32_t *word = va_arg(arguments, const uint32_t *);
    int operation = va_arg(arguments, int);
    uint32_t expected = va_arg(arguments, uint32_t);
    va_end(arguments);
    model_memory *m = model_memory::current;
    long result = 0;
    m->kernel.lock(RL_INFO);
    if (operation == FUTEX_WAKE) {
        m->sleepers.notify_all(RL_INFO);
    } else if (model_load(word, memory_order_seq_cst) != expected) {
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
    /* A column at intervals, none of which is due: an append of so many bytes takes the streaming fence. */
    lane.column[1].every = 2;
    lane.column[1].size = lane.column[1].stride = MC_STREAMING_BYTES;
    return lane;
}

/* One search: the scenario's parameters. */
struct search {
    const char *name;
    void (*run)(rl::test_params &);
    void (*thread)(unsigned index);
    uint64_t capacity;
    int appends;
    uint64_t rows; /* of an append; 0: a device writes them, or the scenario has none */
    int reads;
    uint64_t columns;
    unsigned iterations; /* 0: all executions */
};
static search now;

/* Row t is that of t + 1: memory that was never written is no row. */
static void append(struct mc_lane *lane, uint64_t n) {
    uint64_t rows[MOST_ROWS][WORDS];
    uint64_t first = (uint64_t)mc_lane_committed(lane);
    for (uint64_t i = 0; i < n; i++)
        fill((uint8_t *)rows[i], sizeof *rows, first + i + 1);
    const void *sources[] = {rows};
    int error = mc_lane_append(lane, n, sources);
    RL_ASSERT(error == 0);
}

/* A device writes the row's first word, after the fence of mc_lane_begin. */
static void append_by_device(struct mc_lane *lane) {
    uint64_t row[WORDS];
    int64_t ticket = mc_lane_begin(lane);
    fill((uint8_t *)row, sizeof row, (uint64_t)ticket + 1);
    mc_copy_in(lane->column[0].base + ticket % lane->capacity * sizeof row, row, sizeof *row);
    mc_lane_finish(lane, ticket, row, sizeof *row);
}

static void expect_whole(const uint64_t *row, uint64_t ticket) {
    RL_ASSERT(whole((const uint8_t *)row, WORDS * sizeof *row, ticket + 1));
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
    struct mc_lane lane = lane_of(now.capacity, now.columns);
    if (index == 1)
        sample(&lane);
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, now.rows);
}

/* What a subscriber does: the newest row, whole or not at all, and never an older one than before. */
static void subscriber(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, now.columns);
    int64_t seen = 0;
    for (int i = 0; index == 0 && i < now.appends; i++)
        now.rows ? append(&lane, now.rows) : append_by_device(&lane);
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
    struct mc_lane lane = lane_of(now.capacity, now.columns);
    uint64_t first;
    if (index == 1) {
        sample(&lane);
        return;
    }
    append(&lane, 2);
    int error = mc_lane_reserve(&lane, 2, &first);
    RL_ASSERT(error == 0 && first == 2);
    uint64_t other = 99;
    for (unsigned i = 0, written = rl::rand(2 * WORDS + 1); i < written; i++)
        mc_copy_in((uint8_t *)&space.rows[(2 + i / WORDS) % lane.capacity][i % WORDS], &other, sizeof other);
    append(&lane, 1);
}

/* Whoever counts reads the newest row's first word, while appends of one row and of all rows go on, the first
 * of them after one whose writer died. */
static void counter(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, now.columns);
    uint64_t other[2 * WORDS] = {99, 99, 99, 99}, first;
    if (index == 0) {
        append(&lane, 2);
        int error = mc_lane_reserve(&lane, 2, &first);
        RL_ASSERT(error == 0 && first == 2);
        mc_copy_in((uint8_t *)space.rows, other, rl::rand(2 * WORDS + 1) * sizeof *other);
    }
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, 1 + rl::rand(2));
    for (int i = 0; index == 1 && i < now.reads; i++) {
        int64_t rows, word;
        int error = mc_lanes_newest(&lane, 1, &rows, &word);
        RL_ASSERT(error == 0 && word == rows);
    }
}

/* As the package's waits do it: ask, look again, sleep. */
template <typename count> static void sleep_until(uint8_t *event, int64_t enough, count have) {
    for (int64_t missing; (missing = enough - (int64_t)have()) > 0;) {
        uint32_t seen = mc_event_prepare(event, (uint32_t)missing);
        if (enough - (int64_t)have() == missing)
            mc_event_wait(event, seen, 0);
    }
}

/* Readers sleep, each until its own number of rows is there; only the writer wakes them. */
static void sleeper(unsigned index) {
    struct mc_lane lane = lane_of(now.capacity, now.columns);
    model_memory::current->sleeping = true;
    for (int i = 0; index == 0 && i < now.appends; i++)
        append(&lane, now.rows);
    if (index > 0)
        sleep_until(lane.event, now.appends + 1 - (int64_t)index, [&] { return mc_lane_committed(&lane); });
}

/* A writer sleeps until a sampler has counted in its slot. */
static void room(unsigned index) {
    uint8_t *event = (uint8_t *)space.event, *slot = (uint8_t *)&space.slot;
    model_memory::current->sleeping = true;
    for (int i = 0; index == 0 && i < now.appends; i++) {
        mc_word_store(slot, 0, i + 1);
        mc_event_notify(event, 1);
    }
    if (index > 0)
        sleep_until(event, now.appends, [&] { return mc_word_load(slot, 0); });
}

template <int threads> struct world : rl::test_suite<world<threads>, threads> {
    model_memory memory;
    void thread(unsigned index) { now.thread(index); }
};

template <int threads, template <rl::thread_id_t> class scheduler> static void run(rl::test_params &params) {
    std::ostream state(NULL);
    params.test_result = rl::run_test<world<threads>, scheduler<threads>>(params, state, false);
}

#define ALL run<2, rl::full_search_scheduler>
#define RANDOM run<2, rl::random_scheduler>

/* An exhaustive search lets each load see the newest value but one at the oldest, a random one goes further.
 */
static const search searches[] = {
    {"sample", ALL, sampler, 2, 4, 1, 1, 1, 0},
    {"sample_pairs", ALL, sampler, 2, 2, 2, 1, 1, 0},
    {"sample_stale", RANDOM, sampler, 2, 4, 1, 1, 1, 200000},
    {"sample_streamed", RANDOM, sampler, 2, 4, 1, 1, 2, 200000},
    {"newest_of_1", ALL, subscriber, 1, 2, 1, 1, 1, 0},
    {"newest_of_2", ALL, subscriber, 2, 3, 1, 1, 1, 0},
    {"newest_of_3", RANDOM, subscriber, 3, 6, 1, 2, 1, 200000},
    {"device_of_2", ALL, subscriber, 2, 3, 0, 1, 1, 0},
    {"takeover", ALL, takeover, 3, 0, 0, 1, 1, 0},
    {"count", RANDOM, counter, 2, 4, 0, 3, 1, 200000},
    {"sleep", RANDOM, sleeper, 2, 2, 1, 1, 0, 200000},
    {"sleep_two", run<3, rl::random_scheduler>, sleeper, 2, 2, 1, 1, 0, 200000},
    {"room", RANDOM, room, 0, 2, 0, 0, 0, 200000},
#ifdef MODEL_LONG
    {"sleep_long", ALL, sleeper, 2, 1, 1, 1, 0, 0},
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

/* --random has exhaustive searches walk at random too: they find a broken rule sooner. */
int main(int argc, char **argv) {
    bool random = argc > 1 && strcmp(argv[1], "--random") == 0;
    int first = random ? 2 : 1;
    bool passed = true;
    for (search s : searches) {
        bool wanted = argc == first;
        for (int i = first; i < argc; i++)
            wanted |= strcmp(argv[i], s.name) == 0;
        if (random && s.iterations == 0) {
            s.run = RANDOM;
            s.iterations = 1000000;
        }
        if (wanted)
            passed &= explore(s);
    }
    return passed ? 0 : 1;
}
