/* Any words in the counters and rows of lanes, any order of calls: the core stays within its memory, ends,
 * and gives results of its documented ranges. The geometry is sound, since Python has checked it before.
 *
 * A long run, from the folder csrc (clang with libFuzzer; Debian: clang, libclang-rt-dev):
 *
 *   clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. test/fuzz_lane.c
 * *.c \ -o fuzz_lane -pthread -lm && ./fuzz_lane -max_total_time=600 */
#include <errno.h>

#include "check.h"

enum { MAX_LANES = 3, MAX_CAPACITY = 32, MAX_ROW = 320, COLUMNS = 3 };
enum {
    WRITE_WORD,
    FILL_ROWS,
    READ,
    NEWEST,
    WINDOW,
    VALIDATE,
    COUNT,
    APPEND,
    OPEN,
    ADD,
    ADD_ROWS,
    ADD_VECTOR,
    WORDS,
    CALLS
};

struct input {
    const uint8_t *at, *end;
};

static uint64_t take_bytes(struct input *input, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count && input->at < input->end; i++)
        value = value << 8 | *input->at++;
    return value;
}

static uint64_t take_below(struct input *input, uint64_t limit) { return take_bytes(input, 1) % limit; }

/* Words near what matters are as likely as any. */
static uint64_t take_word(struct input *input, uint64_t near) {
    switch (take_below(input, 4)) {
    case 0:
        return near + take_below(input, 64) - 32;
    case 1:
        return MC_TICKET_LIMIT + take_below(input, 64) - 32;
    case 2:
        return (take_below(input, 4) << 62) + take_below(input, 8) - 4;
    default:
        return take_bytes(input, 8);
    }
}

/* Everything that is private to a process, and beside it what its enemy writes to. */
struct world {
    struct mc_lane lanes[MAX_LANES];
    struct mc_writer writers[MAX_LANES];
    uint64_t count, capacity;
    uint8_t rows[COLUMNS][MAX_CAPACITY * MAX_ROW], records[MAX_CAPACITY * MAX_ROW], ends[3 * MAX_CAPACITY];
};

static void make_world(struct world *world, struct input *input) {
    uint64_t sizes[COLUMNS], every = 1 + take_below(input, 3);
    world->count = 1 + take_below(input, MAX_LANES);
    world->capacity = (1 + take_below(input, MAX_CAPACITY / every)) * every;
    sizes[0] = 16 + 8 * take_below(input, (MAX_ROW - 16) / 8);
    sizes[1] = 1 + take_bytes(input, 2) % MAX_ROW;
    sizes[2] = 1 + take_below(input, 40);
    struct mc_column *stored = &world->lanes[0].column[2];
    world->lanes[0] = make_lanes(world->count, world->capacity, COLUMNS, sizes);
    stored->every = every;
    free(stored->base);
    stored->base = calloc(world->count * world->capacity / every, stored->stride);
    CHECK(stored->base);
    for (uint64_t i = 0; i < world->count; i++) {
        if (i > 0)
            mc_lanes_nth(world->lanes, i, &world->lanes[i]);
        world->writers[i] = (struct mc_writer){.lane = world->lanes[i], .records = world->records};
        for (int k = 1; k < COLUMNS; k++)
            world->writers[i].frames[k] = world->writers[i].final_frames[k] = world->rows[k];
    }
}

static void write_word(struct mc_lane *lane, struct input *input) {
    uint64_t at = take_below(input, 3), committed = mc_load_committed(mc_counters_of(lane));
    uint64_t word = take_word(input, committed);
    if (at == 0)
        mc_store_committed(mc_counters_of(lane), word);
    else if (at == 1)
        mc_store_reserved(mc_counters_of(lane), word);
    else
        set_counters(lane, word, word);
}

/* The head of any record, which transitions and writers read. */
static void fill_row(struct mc_lane *lane, struct input *input) {
    struct mc_row *row =
        (void *)(lane->column[0].base + take_below(input, lane->capacity) * lane->column[0].stride);
    *row = (struct mc_row){.ordinal = (uint32_t)take_word(input, 0), .place = (uint32_t)take_bytes(input, 4)};
}

static void read_rows(struct world *world, const struct mc_lane *lane, struct input *input) {
    void *dests[COLUMNS];
    for (int k = 0; k < COLUMNS; k++)
        dests[k] = k < 2 && take_below(input, 4) ? world->rows[k] : NULL;
    uint64_t ticket = take_word(input, mc_load_committed(mc_counters_of(lane)));
    uint64_t n = take_below(input, MAX_CAPACITY + 1);
    int code = mc_lane_read(lane, ticket, n, dests);
    CHECK(code == 0 || code == -EINVAL || code == -EAGAIN || code == -ESTALE);
    CHECK(code || (1 <= n && n <= lane->capacity));
}

static void look(const struct world *world, struct input *input) {
    int64_t lo[MAX_LANES], hi[MAX_LANES], which[MAX_LANES], lowest[MAX_LANES];
    uint8_t ok[MAX_LANES];
    int code = mc_lanes_window(world->lanes, world->count, lo, hi);
    CHECK(code == 0 || code == -EUCLEAN);
    for (uint64_t i = 0; i < world->count; i++) {
        CHECK(code || (0 <= lo[i] && lo[i] <= hi[i] && (uint64_t)(hi[i] - lo[i]) <= world->capacity));
        which[i] = (int64_t)i;
        lowest[i] = code ? (int64_t)take_word(input, 0) : lo[i];
    }
    int64_t lapped = mc_lanes_validate(world->lanes, world->count, which, lowest, ok);
    CHECK(0 <= lapped && lapped <= (int64_t)world->count);
    for (uint64_t i = 0; i < world->count; i++)
        CHECK(code || ok[i] || lo[i] == hi[i]); /* nobody writes meanwhile */
}

static void count(const struct world *world, const struct mc_lane *lane) {
    int64_t committed = mc_lane_committed(lane), transitions = mc_lane_transitions(lane);
    int64_t inserted = mc_lanes_inserted(world->lanes, world->count);
    CHECK(committed >= 0 || committed == -EUCLEAN);
    CHECK((0 <= transitions && transitions <= (int64_t)lane->capacity) || transitions == -EUCLEAN);
    CHECK(inserted >= 0 || inserted == -EUCLEAN || inserted == -ESTALE);
}

static void add(struct world *world, struct mc_writer *writer, struct input *input) {
    int64_t ticket = mc_writer_add(writer, (int)take_below(input, 8));
    CHECK(ticket >= 0 || ticket == -EUCLEAN || ticket == -EINVAL || ticket == -EDOM);
    CHECK(ticket < 0 || (uint64_t)ticket < MC_TICKET_LIMIT);
    memset(world->records, 0, 2 * MAX_ROW);
}

static void add_rows(struct world *world, struct mc_writer *writer, struct input *input) {
    const void *frames[] = {NULL, world->rows[1], world->rows[2]};
    uint64_t rows = take_below(input, MAX_CAPACITY + 1);
    for (uint64_t i = 0; i < 3 * rows; i++)
        world->ends[i] = take_below(input, 8) == 1;
    int64_t ticket = mc_writer_add_rows(writer, rows, world->records, frames, world->ends, (int)(rows & 1));
    CHECK(ticket >= 0 || ticket == -EUCLEAN || ticket == -EINVAL || ticket == -EDOM || ticket == -EPROTO);
    memset(world->records, 0, sizeof world->records);
}

static void add_vector(struct world *world, struct input *input) {
    struct mc_vector vector = {.writers = world->writers, .count = world->count, .records = world->records};
    uint64_t rows = take_below(input, MAX_LANES + 1);
    int64_t which[MAX_LANES], tickets[MAX_LANES];
    for (uint64_t i = 0; i < rows; i++)
        which[i] = (int64_t)take_below(input, world->count + 2) - 1;
    for (uint64_t i = 0; i < 3 * rows; i++)
        world->ends[i] = take_below(input, 8) == 1;
    for (int k = 1; k < COLUMNS; k++)
        vector.frames[k] = vector.final_frames[k] = world->rows[k];
    vector.final_needed = (int)take_below(input, 2);
    int code = mc_vector_add(&vector, rows, which, world->ends, (int)take_below(input, 2), tickets);
    CHECK(code == 0 || code == -EUCLEAN || code == -EINVAL || code == -EPROTO);
    for (uint64_t i = 0; i < rows && code == 0; i++)
        CHECK(tickets[i] == -1 || (uint64_t)tickets[i] < MC_TICKET_LIMIT);
    for (uint64_t i = 0; i < world->count; i++)
        world->writers[i].records = world->records;
    memset(world->records, 0, sizeof world->records);
}

static void step(struct world *world, struct input *input) {
    uint64_t call = take_below(input, CALLS), which = take_below(input, world->count);
    struct mc_lane *lane = &world->lanes[which];
    const void *sources[] = {world->rows[0], world->rows[1], world->rows[2]};
    int64_t code = 0;
    if (call == WRITE_WORD)
        write_word(lane, input);
    else if (call == FILL_ROWS)
        fill_row(lane, input);
    else if (call == READ)
        read_rows(world, lane, input);
    else if (call == NEWEST)
        CHECK((code = mc_lane_read_newest(lane, world->rows[0])) >= 0 || code == -ESTALE || code == -EINVAL ||
              code == -EAGAIN || code == -EUCLEAN);
    else if (call == WINDOW || call == VALIDATE)
        look(world, input);
    else if (call == COUNT)
        count(world, lane);
    else if (call == APPEND)
        code = mc_lane_append(lane, take_below(input, MAX_CAPACITY + 1), sources);
    else if (call == OPEN)
        code = mc_writer_open(&world->writers[which]);
    else if (call == ADD)
        add(world, &world->writers[which], input);
    else if (call == ADD_ROWS)
        add_rows(world, &world->writers[which], input);
    else if (call == ADD_VECTOR)
        add_vector(world, input);
    else if (call == WORDS)
        mc_words_sum(lane->counters, 2, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct world world;
    struct input input = {data, data + size};
    memset(&world, 0, sizeof world);
    make_world(&world, &input);
    while (input.at < input.end)
        step(&world, &input);
    free_lane(&world.lanes[0]);
    return 0;
}
