/* One writer flat out, many readers: no row that the lane calls whole may be a mixture of two.
 *
 * Each row carries its ticket and a sum over its words. --no-validation takes every copy for whole: it must
 * find torn rows, or the machine did not stress anything.
 *
 * Usage: stress_lane [--reads N | --seconds S] [--readers N] [--capacity ROWS] [--row BYTES] [--frame BYTES]
 *                    [--append ROWS] [--newest] [--no-validation] [--until-torn]
 * A reader reads its share of N, and on until a row was accepted.
 * --frame adds a second column; --newest reads the newest row only, as a subscriber to weights does;
 * --until-torn stops at the first torn row.
 * The status is 1 when a torn row was accepted, 2 for wrong arguments. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "core.h"
#include "rows.h"

enum { BATCH = 16, MAX_READERS = 64 };

static struct {
    uint64_t reads, seconds, readers, capacity, append, row, frame;
    int newest, no_validation, until_torn;
} options = {.reads = 1000000, .readers = 2, .capacity = 16, .append = 1, .row = 40};

static struct mc_lane lane;
static _Atomic int finished;

struct reader {
    pthread_t thread;
    uint64_t random, reads, accepted, lapped, torn;
};

static void *allocate(uint64_t bytes) {
    uint64_t lines = bytes / MC_LINE + 1;
    void *memory = aligned_alloc(MC_LINE, lines * MC_LINE);
    if (!memory)
        abort();
    return memset(memory, 0, lines * MC_LINE);
}

static void *write_rows(void *unused) {
    uint8_t *records = allocate(options.append * lane.column[0].stride);
    uint8_t *frames = allocate(options.append * options.frame + 8);
    const void *sources[] = {records, frames};
    for (uint64_t ticket = 0; !finished; ticket += options.append) {
        for (uint64_t i = 0; i < options.append; i++) {
            fill(records + i * lane.column[0].stride, options.row, ticket + i);
            if (options.frame)
                fill(frames + i * options.frame, options.frame, ticket + i);
        }
        if (mc_lane_append(&lane, options.append, sources))
            abort();
    }
    free(records);
    free(frames);
    return unused;
}

static void judge(struct reader *reader, uint8_t *const *copy, uint64_t ticket, int accepted) {
    int torn = !whole(copy[0], options.row, ticket);
    if (options.frame)
        torn |= !whole(copy[1], options.frame, ticket);
    reader->reads++;
    reader->accepted += (uint64_t)accepted;
    reader->lapped += (uint64_t)!accepted;
    reader->torn += (uint64_t)(accepted && torn);
    if (reader->torn && options.until_torn)
        finished = 1;
}

static void copy_row(uint8_t *const *copy, uint64_t ticket) {
    for (uint64_t k = 0; k < lane.columns; k++) {
        const struct mc_column *column = &lane.column[k];
        mc_copy_out(copy[k], column->base + ticket % lane.capacity * column->stride, column->size);
    }
}

/* What a sampler does: a window, copies, one validation for all of them. */
static void read_batch(struct reader *reader, uint8_t *const copies[BATCH][2]) {
    int64_t lo, hi, tickets[BATCH], lanes[BATCH] = {0};
    uint8_t ok[BATCH];
    if (mc_lanes_window(&lane, 1, &lo, &hi))
        abort();
    for (int i = 0; lo < hi && i < BATCH; i++) {
        reader->random = reader->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        tickets[i] = lo + (int64_t)((reader->random >> 33) % (uint64_t)(hi - lo));
        copy_row(copies[i], (uint64_t)tickets[i]);
    }
    if (lo == hi)
        return;
    mc_lanes_validate(&lane, BATCH, lanes, tickets, ok);
    for (int i = 0; i < BATCH; i++)
        judge(reader, copies[i], (uint64_t)tickets[i], options.no_validation || ok[i]);
}

/* What a subscriber does. */
static void read_newest(struct reader *reader, uint8_t *const copy[2]) {
    if (options.no_validation) {
        int64_t committed = mc_lane_committed(&lane);
        if (committed > 0) {
            copy_row(copy, (uint64_t)committed - 1);
            judge(reader, copy, (uint64_t)committed - 1, 1);
        }
        return;
    }
    int64_t version = mc_lane_read_newest(&lane, copy[0]);
    if (version)
        judge(reader, copy, (uint64_t)version - 1, version > 0);
}

static void *read_rows(void *argument) {
    struct reader *reader = argument;
    uint8_t *copies[BATCH][2];
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < 2; k++)
            copies[i][k] = allocate((k ? options.frame : options.row) + 8);
    uint64_t share = options.reads / options.readers;
    while (!finished && (options.seconds || reader->reads < share || !reader->accepted)) {
        if (options.newest)
            read_newest(reader, copies[0]);
        else
            read_batch(reader, copies);
    }
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < 2; k++)
            free(copies[i][k]);
    return NULL;
}

static void make_lane(void) {
    lane.capacity = options.capacity;
    lane.counters = allocate(MC_LINE);
    lane.event = allocate(MC_LINE);
    lane.columns = options.frame ? 2 : 1;
    for (uint64_t k = 0; k < lane.columns; k++) {
        struct mc_column *column = &lane.column[k];
        column->size = k ? options.frame : options.row;
        column->stride = (column->size + 7) / 8 * 8;
        column->every = 1;
        column->base = allocate(options.capacity * column->stride);
    }
}

static int report(const struct reader *readers, double seconds) {
    uint64_t reads = 0, accepted = 0, lapped = 0, torn = 0;
    for (uint64_t i = 0; i < options.readers; i++) {
        reads += readers[i].reads;
        accepted += readers[i].accepted;
        lapped += readers[i].lapped;
        torn += readers[i].torn;
    }
    printf("reads %llu accepted %llu lapped %llu torn %llu appended %lld seconds %.3f reads_per_s %.0f\n",
           (unsigned long long)reads, (unsigned long long)accepted, (unsigned long long)lapped,
           (unsigned long long)torn, (long long)mc_lane_committed(&lane), seconds, (double)reads / seconds);
    return torn > 0;
}

static int parse(int argc, char **argv) {
    const struct argument known[] = {{.name = "--reads", .number = &options.reads},
                                     {.name = "--seconds", .number = &options.seconds},
                                     {.name = "--readers", .number = &options.readers},
                                     {.name = "--capacity", .number = &options.capacity},
                                     {.name = "--append", .number = &options.append},
                                     {.name = "--row", .number = &options.row},
                                     {.name = "--frame", .number = &options.frame},
                                     {.name = "--newest", .flag = &options.newest},
                                     {.name = "--no-validation", .flag = &options.no_validation},
                                     {.name = "--until-torn", .flag = &options.until_torn}};
    if (read_arguments(argc, argv, known, sizeof known / sizeof *known))
        return -EINVAL;
    int sizes =
        options.row >= 8 && (options.frame == 0 || options.frame >= 8) && !(options.newest && options.frame);
    int counts = options.readers >= 1 && options.readers <= MAX_READERS && options.append >= 1 &&
                 options.append <= options.capacity;
    return sizes && counts ? 0 : -EINVAL;
}

int main(int argc, char **argv) {
    static struct reader readers[MAX_READERS];
    struct timespec start, end;
    pthread_t writer;
    if (parse(argc, argv)) {
        fprintf(stderr, "stress_lane: see the head of stress_lane.c for the arguments\n");
        return 2;
    }
    make_lane();
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (pthread_create(&writer, NULL, write_rows, NULL))
        abort();
    for (uint64_t i = 0; i < options.readers; i++) {
        readers[i].random = i + 1;
        if (pthread_create(&readers[i].thread, NULL, read_rows, &readers[i]))
            abort();
    }
    if (options.seconds) {
        struct timespec pause = {.tv_sec = (time_t)options.seconds};
        nanosleep(&pause, NULL);
        finished = 1;
    }
    for (uint64_t i = 0; i < options.readers; i++)
        pthread_join(readers[i].thread, NULL);
    finished = 1;
    pthread_join(writer, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return report(readers,
                  (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
}
