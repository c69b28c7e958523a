/* Writers and readers in processes of their own, killed at any moment and replaced: whoever lives goes on.
 *
 * Each lane has one writer, which holds the lane's kernel lock. A parent kills a random child with SIGKILL,
 * now and then all but one reader, and forks the successors at once: these must get the locks, find counters
 * that they can go on from, and keep what was reserved. Readers judge every row that they accept by its
 * ticket and a sum over its words. Every ROLL_CALL cycles all who live must do something; one who does not
 * within PATIENCE_S is hung.
 *
 * It prints what it counted: kills, and those of them while a child started, was inside an append or waited
 * for a row; what readers accepted and the witness of it; waits, and those that ran into their time limit,
 * since the writer that took the announcement was killed before it woke them. The rest are faults.
 *
 * Usage: kill_cycles [--cycles N] [--seed S] [--lower-reserved] [--no-validation] [--until-torn]
 * Positive controls: --lower-reserved has successors take back what their predecessors reserved beyond what
 * they committed; --no-validation takes every copy for whole. --until-torn ends with the cycle that finds a
 * torn row. The status is 1 when there was any fault, 2 for wrong arguments. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "core.h"
#include "rows.h"

enum {
    LANES = 4,
    ROLES = LANES + 2,
    WITNESS = LANES
}; /* a writer a lane, and readers, the first never killed */
enum { BATCH = 4, ROLL_CALL = 16, PATIENCE_S = 300, LONGEST_ROW = 65536 };
enum { STARTING, WORKING, WAITING };
enum { REFUSED = 10, CORRUPT = 11 }; /* how children end by themselves */

static struct {
    uint64_t cycles, seed;
    int lower_reserved, no_validation, until_torn;
} options = {.cycles = 1000, .seed = 1};

static const struct kind {
    uint64_t capacity, record, frame;
    uint64_t most; /* transitions that are added at once; 0: the rows are whole models */
} kinds[LANES] = {
    {.capacity = 4, .record = 56, .most = 1},
    {.capacity = 8, .record = 56, .frame = 567, .most = 3},
    {.capacity = 2, .record = LONGEST_ROW},
    {.capacity = 3, .record = 10000},
};

/* In shared memory; written by the role's process, and by the parent while there is none. */
struct life {
    _Alignas(MC_LINE) mc_word phase, progress, accepted, lapped, torn, fell, waits, timeouts;
};

static struct mc_lane lanes[LANES];
static struct life *lives;
static int segment;
static pid_t parent, pids[ROLES];
static uint64_t born[ROLES][2]; /* committed and reserved when the lane's writer was forked */
static struct {
    uint64_t kills, starting, inside, waiting, unlocked, refused, corrupt, failed, fell, hung;
} counts;

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void nap(uint64_t ns) {
    struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

/* ---- rows ---- */

/* The core writes the head of a transition's record. */
static uint64_t head_of(const struct kind *kind) { return kind->most ? sizeof(struct mc_row) : 0; }

static int row_whole(const struct kind *kind, const uint8_t *record, const uint8_t *frame, uint64_t ticket) {
    uint64_t head = head_of(kind);
    struct mc_row row = {.ordinal = (uint32_t)ticket};
    if (head)
        memcpy(&row, record, sizeof row);
    return row.ordinal == (uint32_t)ticket && whole(record + head, kind->record - head, ticket) &&
           (!kind->frame || whole(frame, kind->frame, ticket));
}

/* ---- what children do ---- */

/* The descriptor stays open: the lock ends with the process. */
static int claim(uint64_t lane) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : mc_lock_try(fd, 1 + (int64_t)lane, 1);
}

static int64_t append(struct mc_writer *writer, const struct kind *kind, uint64_t ticket, uint64_t rows) {
    static uint8_t frames[4 * 1024], ends[3 * 8];
    const void *sources[2] = {writer->records, frames};
    uint64_t head = head_of(kind);
    for (uint64_t i = 0; i < rows; i++) {
        fill(writer->records + i * kind->record + head, kind->record - head, ticket + i);
        if (kind->frame)
            fill(frames + i * kind->frame, kind->frame, ticket + i);
    }
    if (!kind->most)
        return mc_lane_append(&writer->lane, 1, sources) ? -1 : (int64_t)ticket;
    if (kind->most == 1)
        return mc_writer_add(writer, 0);
    return mc_writer_add_rows(writer, rows, writer->records, sources, ends, 0);
}

static void write_rows(uint64_t lane, struct life *life, uint64_t random) {
    static uint8_t records[LONGEST_ROW];
    const struct kind *kind = &kinds[lane];
    struct mc_writer writer = {.lane = lanes[lane], .records = records};
    if (claim(lane))
        _exit(REFUSED);
    if (kind->most ? mc_writer_open(&writer) : mc_lane_check(&writer.lane))
        _exit(CORRUPT);
    struct mc_counters *counters = mc_counters_of(&writer.lane);
    if (options.lower_reserved)
        mc_store_reserved(counters, mc_load_committed(counters));
    life->phase = WORKING;
    for (uint64_t ticket = mc_load_committed(counters);; life->progress++) {
        uint64_t rows = kind->most ? 1 + next_random(&random) % kind->most : 1;
        if (next_random(&random) % 64 == 0)
            nap(next_random(&random) % 100000);
        if (append(&writer, kind, ticket, rows) != (int64_t)ticket)
            _exit(CORRUPT);
        ticket += rows;
    }
}

static void judge(struct life *life, uint64_t lane, uint8_t *copy[2], uint64_t ticket, int accepted) {
    life->accepted += (uint64_t)accepted;
    life->lapped += (uint64_t)!accepted;
    life->torn += (uint64_t)(accepted && !row_whole(&kinds[lane], copy[0], copy[1], ticket));
}

/* What a sampler does: a window, copies, one validation for all of them. */
static void read_batch(struct life *life, uint64_t lane, uint64_t *random, int64_t *newest) {
    static uint8_t copies[BATCH][2][LONGEST_ROW];
    int64_t lo, hi, tickets[BATCH], of[BATCH] = {0};
    uint64_t n = kinds[lane].most ? BATCH : 1;
    uint8_t ok[BATCH];
    if (mc_lanes_window(&lanes[lane], 1, &lo, &hi))
        _exit(CORRUPT);
    life->fell += (uint64_t)(hi < newest[lane]);
    newest[lane] = hi;
    if (lo == hi)
        return;
    for (uint64_t i = 0; i < n; i++) {
        tickets[i] = lo + (int64_t)(next_random(random) % (uint64_t)(hi - lo));
        for (uint64_t k = 0; k < lanes[lane].columns; k++) {
            const struct mc_column *column = &lanes[lane].column[k];
            uint64_t row = (uint64_t)tickets[i] % lanes[lane].capacity;
            mc_copy_out(copies[i][k], column->base + row * column->stride, column->size);
        }
    }
    mc_lanes_validate(&lanes[lane], n, of, tickets, ok);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *copy[2] = {copies[i][0], copies[i][1]};
        judge(life, lane, copy, (uint64_t)tickets[i], options.no_validation || ok[i]);
    }
}

/* What a subscriber does. */
static void read_newest(struct life *life, uint64_t lane) {
    static uint8_t row[LONGEST_ROW];
    int64_t version = mc_lane_read_newest(&lanes[lane], row);
    if (version)
        judge(life, lane, (uint8_t *[2]){row, NULL}, (uint64_t)version - 1, version > 0);
}

static void wait_for_row(struct life *life, uint64_t lane) {
    int64_t committed = mc_lane_committed(&lanes[lane]);
    life->phase = WAITING;
    uint32_t seen = mc_event_prepare(lanes[lane].event, 1);
    if (mc_lane_committed(&lanes[lane]) == committed) {
        int error = mc_event_wait(lanes[lane].event, seen, 100000000);
        life->waits++;
        life->timeouts += (uint64_t)(error == -ETIMEDOUT);
    }
    life->phase = WORKING;
}

static void read_rows(struct life *life, uint64_t random) {
    int64_t newest[LANES] = {0};
    for (life->phase = WORKING;; life->progress++) {
        uint64_t lane = next_random(&random) % LANES;
        if (next_random(&random) % 64 == 0)
            wait_for_row(life, lane);
        else if (!kinds[lane].most && !options.no_validation && next_random(&random) % 2)
            read_newest(life, lane);
        else
            read_batch(life, lane, &random, newest);
    }
}

/* ---- what the parent does ---- */

static void start(uint64_t role, uint64_t *random) {
    uint64_t seed = next_random(random);
    lives[role].phase = STARTING;
    if (role < LANES) {
        born[role][0] = mc_load_committed(mc_counters_of(&lanes[role]));
        born[role][1] = mc_load_reserved(mc_counters_of(&lanes[role]));
    }
    pids[role] = fork();
    if (pids[role] < 0)
        abort();
    if (pids[role])
        return;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(1);
    if (role < LANES)
        write_rows(role, &lives[role], seed);
    else
        read_rows(&lives[role], seed);
}

/* A dead writer's lock is free, its counters did not fall. What it reserved last and did not commit, it was
 * inside of; what its predecessor had reserved beyond that does not count. */
static void examine(uint64_t lane) {
    uint64_t c = mc_load_committed(mc_counters_of(&lanes[lane]));
    uint64_t r = mc_load_reserved(mc_counters_of(&lanes[lane]));
    counts.refused += (uint64_t)(mc_lock_held(segment, 1 + (int64_t)lane) != 0);
    counts.fell += (uint64_t)(c < born[lane][0] || (r < born[lane][1] && !options.lower_reserved));
    counts.inside += (uint64_t)(r > c && r > born[lane][1]);
}

static void bury(uint64_t role) {
    int status;
    if (waitpid(pids[role], &status, 0) != pids[role])
        abort();
    counts.kills++;
    counts.starting += (uint64_t)(lives[role].phase == STARTING);
    counts.waiting += (uint64_t)(lives[role].phase == WAITING);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED)
        counts.refused++;
    else if (WIFEXITED(status) && WEXITSTATUS(status) == CORRUPT)
        counts.corrupt++;
    else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        counts.failed++;
    if (role < LANES)
        examine(role);
}

static void kill_them(const int *victims) {
    for (uint64_t role = 0; role < ROLES; role++) {
        if (role < LANES && lives[role].phase == WORKING)
            counts.unlocked += (uint64_t)(mc_lock_held(segment, 1 + (int64_t)role) != 1);
        if (victims[role])
            kill(pids[role], SIGKILL);
    }
    for (uint64_t role = 0; role < ROLES; role++)
        if (victims[role])
            bury(role);
}

/* One victim, now and then all but the witness. */
static void cycle(uint64_t *random) {
    int victims[ROLES] = {0};
    uint64_t one = next_random(random) % (ROLES - 1), until = now_ns() + next_random(random) % 50000;
    victims[one + (one >= WITNESS)] = 1;
    if (next_random(random) % 32 == 0)
        for (uint64_t role = 0; role < ROLES; role++)
            victims[role] = role != WITNESS;
    while (now_ns() < until)
        continue;
    kill_them(victims);
    for (uint64_t role = 0; role < ROLES; role++)
        if (victims[role])
            start(role, random);
}

/* Waits, for a limited time, until all have done something. */
static void call_roll(void) {
    uint64_t seen[ROLES], deadline = now_ns() + UINT64_C(1000000000) * PATIENCE_S;
    for (uint64_t role = 0; role < ROLES; role++)
        seen[role] = lives[role].progress;
    for (uint64_t role = 0; role < ROLES; role++) {
        while (lives[role].progress == seen[role] && now_ns() < deadline)
            nap(20000);
        counts.hung += (uint64_t)(lives[role].progress == seen[role]);
    }
}

/* Rows of the dead, some of them killed inside an append, are whole too. */
static void read_what_is_left(uint64_t *random) {
    int64_t newest[LANES] = {0};
    for (uint64_t i = 0; i < 100 * LANES; i++)
        read_batch(&lives[WITNESS], i % LANES, random, newest);
}

static uint64_t total(size_t word) {
    uint64_t sum = 0;
    for (uint64_t role = 0; role < ROLES; role++)
        sum += *(mc_word *)(void *)((char *)&lives[role] + word);
    return sum;
}
#define TOTAL(word) total(offsetof(struct life, word))

static uint64_t descriptors(void) {
    uint64_t open = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        open++;
    closedir(folder);
    return open;
}

/* A segment as marlcore's: zeroed pages of shared memory, here without a name. */
static uint8_t *map(uint64_t bytes) {
    segment = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (segment < 0 || ftruncate(segment, (off_t)bytes))
        abort();
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

static uint8_t *take(uint8_t **memory, uint64_t bytes) {
    uint8_t *taken = *memory;
    *memory += (bytes + MC_LINE - 1) / MC_LINE * MC_LINE;
    return taken;
}

static void make_lanes(void) {
    uint8_t *memory = map(512 * 1024);
    lives = (struct life *)(void *)take(&memory, ROLES * sizeof *lives);
    uint8_t *event = take(&memory, MC_LINE);
    for (uint64_t i = 0; i < LANES; i++) {
        lanes[i] = (struct mc_lane){.capacity = kinds[i].capacity, .event = event};
        lanes[i].counters = take(&memory, MC_LINE);
        lanes[i].columns = kinds[i].frame ? 2 : 1;
        for (uint64_t k = 0; k < lanes[i].columns; k++) {
            uint64_t size = k ? kinds[i].frame : kinds[i].record, stride = (size + 7) / 8 * 8;
            uint8_t *base = take(&memory, kinds[i].capacity * stride);
            lanes[i].column[k] = (struct mc_column){base, size, stride, 1};
        }
    }
}

static uint64_t rows_written(void) {
    uint64_t rows = 0;
    for (uint64_t lane = 0; lane < LANES; lane++)
        rows += mc_load_committed(mc_counters_of(&lanes[lane]));
    return rows;
}

struct word {
    const char *name;
    uint64_t value;
};

/* The sum of their values. */
static uint64_t print_words(const struct word *words, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        printf("%s %llu ", words[i].name, (unsigned long long)words[i].value);
        sum += words[i].value;
    }
    return sum;
}

static int report(uint64_t cycles, uint64_t leaked, uint64_t left, double seconds) {
    const struct word words[] = {{"cycles", cycles},
                                 {"kills", counts.kills},
                                 {"starting", counts.starting},
                                 {"inside", counts.inside},
                                 {"waiting", counts.waiting},
                                 {"appended", rows_written()},
                                 {"rows_per_kill", rows_written() / counts.kills},
                                 {"accepted", TOTAL(accepted)},
                                 {"lapped", TOTAL(lapped)},
                                 {"waits", TOTAL(waits)},
                                 {"timeouts", TOTAL(timeouts)},
                                 {"witnessed", lives[WITNESS].accepted}};
    const struct word faults[] = {
        {"torn", TOTAL(torn)},       {"fell", TOTAL(fell) + counts.fell}, {"unlocked", counts.unlocked},
        {"refused", counts.refused}, {"corrupt", counts.corrupt},         {"failed", counts.failed},
        {"hung", counts.hung},       {"descriptors_leaked", leaked},      {"children_left", left}};
    print_words(words, sizeof words / sizeof *words);
    uint64_t found = print_words(faults, sizeof faults / sizeof *faults);
    printf("seconds %.1f\n", seconds);
    return found > 0;
}

static int parse(int argc, char **argv) {
    const struct argument known[] = {{.name = "--cycles", .number = &options.cycles},
                                     {.name = "--seed", .number = &options.seed},
                                     {.name = "--lower-reserved", .flag = &options.lower_reserved},
                                     {.name = "--no-validation", .flag = &options.no_validation},
                                     {.name = "--until-torn", .flag = &options.until_torn}};
    if (read_arguments(argc, argv, known, sizeof known / sizeof *known))
        return -EINVAL;
    return options.cycles >= 1 ? 0 : -EINVAL;
}

int main(int argc, char **argv) {
    int all[ROLES];
    if (parse(argc, argv)) {
        fprintf(stderr, "kill_cycles: see the head of kill_cycles.c for the arguments\n");
        return 2;
    }
    uint64_t random = options.seed, done = 0, began = now_ns();
    parent = getpid();
    make_lanes();
    uint64_t before = descriptors();
    for (uint64_t role = 0; role < ROLES; role++) {
        start(role, &random);
        all[role] = 1;
    }
    while (done < options.cycles && !counts.hung && !(options.until_torn && TOTAL(torn))) {
        cycle(&random);
        if (++done % ROLL_CALL == 0)
            call_roll();
    }
    call_roll();
    kill_them(all);
    read_what_is_left(&random);
    uint64_t left = waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
    return report(done, descriptors() - before, left, 1e-9 * (double)(now_ns() - began));
}
