/* Rows from one process to others, each of which waits for the other side: no wake-up may be lost.
 *
 * A writer is at most --ahead rows ahead of its slowest reader, and readers take every row in order. Who
 * cannot go on sleeps on an event as all waits of the package do: announce how much is missing, look again,
 * wait. A writer that has to wait does so until its readers have taken --lump rows more. Random pauses between
 * these steps, and before each row, let the other side come at any point of them.
 *
 * A wake-up is lost when a wait lasted until its time was up although all that it waited for had been done,
 * and its notification was over, before that time. A wait that lasts so long while others have yet to act is
 * idle.
 *
 * Usage: handoffs [--handoffs N] [--readers N] [--ahead ROWS] [--lump ROWS] [--pause STEPS] [--until-lost]
 * --handoffs is how often somebody waited and was let go on; --until-lost stops at the first lost wake-up.
 * The status is 1 when a wake-up was lost, 2 for wrong arguments. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "core.h"

enum { WRITER = 0, MAX_PARTIES = 9, CAPACITY = 64, ROWS = 0, ROOM = 1 };

#define SLICE_NS INT64_C(100000000) /* that of the package's waits */
#define LAST_ROW UINT64_MAX

static struct {
    uint64_t handoffs, readers, ahead, lump, pause;
    int until_lost;
} options = {.handoffs = 100000, .readers = 1, .ahead = 1};

struct party { /* written by it alone */
    alignas(MC_LINE) mc_word rows;
    mc_word notified; /* so many of its rows */
    mc_word notified_at;
    mc_word handoffs, spurious, idle, lost, sleeps;
};

static struct shared {
    alignas(MC_LINE) uint8_t counters[MC_LINE];
    uint8_t events[2][MC_LINE];
    uint64_t rows[CAPACITY];
    struct party parties[MAX_PARTIES];
} *shared;

static struct mc_lane lane;
static uint64_t me, chance;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void count(mc_word *word, uint64_t more) { mc_store_word(word, mc_load_word(word) + more); }

static uint64_t sum(size_t offset) {
    uint64_t total = 0;
    for (uint64_t i = 0; i <= options.readers; i++)
        total += mc_load_word((mc_word *)(void *)((uint8_t *)&shared->parties[i] + offset));
    return total;
}
#define SUM(counter) sum(offsetof(struct party, counter))

/* Mostly short, now and then up to --pause steps: as likely 1 to 2 as 1024 to 2048. */
static void pause_a_while(void) {
    if (options.pause == 0)
        return;
    chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t steps = (options.pause >> (chance >> 33) % 12) * (chance >> 40 & 255) / 256;
    for (volatile uint64_t i = 0; i < steps; i++)
        ;
}

/* The others, whom this party waits for: the writer for all readers, a reader for the writer. */
static uint64_t first_other(void) { return me == WRITER ? 1 : WRITER; }
static uint64_t last_other(void) { return me == WRITER ? options.readers : WRITER; }

static uint64_t rows_of(uint64_t party) {
    return party == WRITER ? (uint64_t)mc_lane_committed(&lane) : mc_load_word(&shared->parties[party].rows);
}

/* How many rows the slowest of the others has to come to a row. */
static uint32_t missing_to(uint64_t row) {
    uint64_t least = row;
    for (uint64_t i = first_other(); i <= last_other(); i++)
        least = rows_of(i) < least ? rows_of(i) : least;
    return (uint32_t)(row - least);
}

/* Whether the others had come to a row and notified before a time, and are at no later row's notification,
 * which may have taken the announcement and be about to wake this party. */
static int others_had_notified(uint64_t row, uint64_t before) {
    for (uint64_t i = first_other(); i <= last_other(); i++) {
        struct party *other = &shared->parties[i];
        uint64_t notified = mc_load_word(&other->notified);
        if (notified < row || mc_load_word(&other->notified_at) >= before || rows_of(i) != notified)
            return 0;
    }
    return 1;
}

static void wait_for(uint64_t row) {
    struct party *mine = &shared->parties[me];
    uint8_t *event = shared->events[me == WRITER ? ROOM : ROWS];
    int waited = 0;
    for (uint32_t missing; (missing = missing_to(row)) > 0;) {
        uint32_t seen = mc_event_prepare(event, missing);
        pause_a_while();
        if (missing_to(row) < missing)
            continue;
        pause_a_while();
        uint64_t end = now() + (uint64_t)SLICE_NS;
        int code = mc_event_wait(event, seen, SLICE_NS);
        waited = 1;
        if (code != 0 && code != -ETIMEDOUT)
            abort();
        if (code == 0)
            count(&mine->spurious, missing_to(row) > 0);
        else
            count(others_had_notified(row, end) ? &mine->lost : &mine->idle, 1);
    }
    count(&mine->handoffs, (uint64_t)waited);
}

static void has_notified(uint64_t rows) {
    mc_store_word(&shared->parties[me].notified_at, now());
    mc_store_word(&shared->parties[me].notified, rows);
}

static int enough(void) { return SUM(handoffs) >= options.handoffs || (options.until_lost && SUM(lost) > 0); }

static void write_rows(void) {
    uint64_t value = 0;
    const void *sources[] = {&value};
    for (uint64_t row = 0; value != LAST_ROW; row++) {
        if (row >= options.ahead && missing_to(row + 1 - options.ahead))
            wait_for(row + 1 - options.ahead + options.lump);
        pause_a_while();
        value = enough() ? LAST_ROW : row;
        if (mc_lane_append(&lane, 1, sources))
            abort();
        has_notified(row + 1);
    }
}

static void take_rows(void) {
    uint64_t value = 0;
    void *dests[] = {&value};
    for (uint64_t row = 0; value != LAST_ROW; row++) {
        wait_for(row + 1);
        if (mc_lane_read(&lane, row, 1, dests) || (value != row && value != LAST_ROW))
            abort();
        pause_a_while();
        mc_store_word(&shared->parties[me].rows, row + 1);
        mc_event_notify(shared->events[ROOM], 1);
        has_notified(row + 1);
    }
}

static pid_t start(uint64_t party) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    struct rusage usage;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(3);
    me = party;
    chance = party + 1;
    if (party == WRITER)
        write_rows();
    else
        take_rows();
    getrusage(RUSAGE_SELF, &usage);
    mc_store_word(&shared->parties[me].sleeps, (uint64_t)usage.ru_nvcsw);
    _exit(0);
}

/* One that fails ends the program, and the others with it. */
static void run_parties(void) {
    for (uint64_t i = 0; i <= options.readers; i++)
        if (start(i) < 0)
            abort();
    for (uint64_t i = 0; i <= options.readers; i++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            abort();
    }
}

static void make_lane(void) {
    shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* zeroed */
    if (shared == MAP_FAILED)
        abort();
    lane.capacity = CAPACITY;
    lane.counters = shared->counters;
    lane.event = shared->events[ROWS];
    lane.columns = 1;
    lane.column[0] = (struct mc_column){.base = (uint8_t *)shared->rows, .size = 8, .stride = 8, .every = 1};
}

static int parse(int argc, char **argv) {
    const struct argument known[] = {{.name = "--handoffs", .number = &options.handoffs},
                                     {.name = "--readers", .number = &options.readers},
                                     {.name = "--ahead", .number = &options.ahead},
                                     {.name = "--lump", .number = &options.lump},
                                     {.name = "--pause", .number = &options.pause},
                                     {.name = "--until-lost", .flag = &options.until_lost}};
    if (read_arguments(argc, argv, known, sizeof known / sizeof *known))
        return -EINVAL;
    int readers = options.readers >= 1 && options.readers < MAX_PARTIES;
    int rows = options.ahead >= 1 && options.ahead <= CAPACITY && options.lump < options.ahead;
    return readers && rows ? 0 : -EINVAL;
}

int main(int argc, char **argv) {
    if (parse(argc, argv)) {
        fprintf(stderr, "handoffs: see the head of handoffs.c for the arguments\n");
        return 2;
    }
    make_lane();
    uint64_t began = now();
    run_parties();
    printf("handoffs %llu rows %lld sleeps %llu spurious %llu idle %llu lost %llu seconds %.3f\n",
           (unsigned long long)SUM(handoffs), (long long)mc_lane_committed(&lane),
           (unsigned long long)SUM(sleeps), (unsigned long long)SUM(spurious), (unsigned long long)SUM(idle),
           (unsigned long long)SUM(lost), 1e-9 * (double)(now() - began));
    return SUM(lost) > 0;
}
