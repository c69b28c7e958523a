/* Transitions on a lane, one behaviour a test. Records are 24 bytes, of which the head is 16; frames are 3.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "check.h"

enum { RECORD = 24, FRAME = 3, AGE_LIMIT = 1 << 24 };

/* A writer with its staging, as a process has it. */
struct fixture {
    struct mc_writer writer;
    uint8_t records[2 * RECORD], frame[FRAME], final_frame[FRAME];
};

static void open_writer(struct fixture *f, struct mc_lane lane) {
    memset(f, 0, sizeof *f);
    f->writer.lane = lane;
    f->writer.records = f->records;
    f->writer.frames[1] = f->frame;
    f->writer.final_frames[1] = f->final_frame;
    CHECK(mc_writer_open(&f->writer) == 0);
}

static struct mc_lane make_replays(uint64_t n, uint64_t capacity) {
    const uint64_t sizes[] = {RECORD, FRAME};
    return make_lanes(n, capacity, 2, sizes);
}

static struct mc_lane make_replay(uint64_t capacity) { return make_replays(1, capacity); }

static struct mc_lane open_replay(struct fixture *f, uint64_t capacity) {
    struct mc_lane lane = make_replay(capacity);
    open_writer(f, lane);
    return lane;
}

static int64_t add(struct fixture *f, float reward, int flags) {
    struct mc_row row = {.ordinal = 99, .place = 99, .policy_version = 99, .reward = reward};
    memcpy(f->records, &row, sizeof row);
    row.reward = 0;
    memcpy(f->records + RECORD, &row, sizeof row);
    memset(f->frame, (int)reward, FRAME);
    memset(f->final_frame, (int)reward + 100, FRAME);
    return mc_writer_add(&f->writer, flags);
}

static struct mc_row row_at(const struct mc_lane *lane, uint64_t ticket) {
    uint8_t record[RECORD];
    struct mc_row row;
    void *dests[MC_MAX_COLUMNS] = {record};
    CHECK(mc_lane_read(lane, ticket, 1, dests) == 0);
    memcpy(&row, record, sizeof row);
    return row;
}

static int flags_of(struct mc_row row) { return (int)(row.place >> 24); }

static void expect_row(const struct mc_lane *lane, uint64_t ticket, uint32_t ordinal, uint32_t age,
                       int flags) {
    struct mc_row row = row_at(lane, ticket);
    CHECK(row.ordinal == ordinal);
    CHECK((row.place & (AGE_LIMIT - 1)) == age);
    CHECK(flags_of(row) == flags);
}

static int frame_at(const struct mc_lane *lane, uint64_t ticket) {
    uint8_t frame[FRAME];
    void *dests[MC_MAX_COLUMNS] = {NULL, frame};
    CHECK(mc_lane_read(lane, ticket, 1, dests) == 0 && frame[0] == frame[FRAME - 1]);
    return frame[0];
}

TEST(heads_count_transitions_and_age_within_an_episode) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    f.writer.policy_version = 7;
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, 0) == 1 && add(&f, 3, MC_TERMINATED) == 2 && add(&f, 4, 0) == 3);
    expect_row(&lane, 0, 0, 0, 0);
    expect_row(&lane, 1, 1, 1, 0);
    expect_row(&lane, 2, 2, 2, MC_TERMINATED);
    expect_row(&lane, 3, 3, 0, 0);
    CHECK(row_at(&lane, 1).policy_version == 7 && row_at(&lane, 1).reward == 2 && frame_at(&lane, 1) == 2);
    free_lane(&lane);
}

TEST(a_boundary_row_follows_the_transition_that_it_closes) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, MC_TRUNCATED | MC_BOUNDARY) == 1 && add(&f, 3, 0) == 3);
    expect_row(&lane, 1, 1, 1, MC_TRUNCATED);
    expect_row(&lane, 2, 2, 2, MC_BOUNDARY);
    expect_row(&lane, 3, 2, 0, 0);
    CHECK(frame_at(&lane, 1) == 2 && frame_at(&lane, 2) == 102 && frame_at(&lane, 3) == 3);
    CHECK(mc_lane_transitions(&lane) == 3);
    free_lane(&lane);
}

TEST(a_transition_and_its_boundary_row_wrap_around_together) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 3);
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, 0) == 1);
    CHECK(add(&f, 3, MC_TRUNCATED | MC_BOUNDARY) == 2 && mc_lane_committed(&lane) == 4);
    expect_row(&lane, 2, 2, 2, MC_TRUNCATED);
    expect_row(&lane, 3, 3, 3, MC_BOUNDARY);
    CHECK(frame_at(&lane, 3) == 103);
    free_lane(&lane);
}

TEST(an_age_past_its_limit_goes_on_in_step_with_the_intervals) {
    const uint64_t sizes[] = {RECORD, FRAME, 8};
    struct mc_lane lane = make_lane(12, 3, sizes);
    struct fixture f;
    lane.column[2].every = 3;
    open_writer(&f, lane);
    f.writer.frames[2] = f.frame;
    f.writer.age = AGE_LIMIT - 2;
    for (int i = 0; i < 3; i++)
        add(&f, 0, 0);
    expect_row(&lane, 0, 0, AGE_LIMIT - 2, 0);
    expect_row(&lane, 1, 1, AGE_LIMIT - 1, 0);
    expect_row(&lane, 2, 2, AGE_LIMIT - AGE_LIMIT / 2 / 3 * 3, 0);
    CHECK((AGE_LIMIT - AGE_LIMIT / 2 / 3 * 3) % 3 == AGE_LIMIT % 3);
    free_lane(&lane);
}

/* Whatever the lengths of episodes are, a stored state stays where it is until `every` tickets of the same
 * row of the ring come again. */
TEST(a_state_is_stored_at_each_interval_of_an_episode_and_nowhere_else) {
    enum { EVERY = 3, ROWS = 12 };
    const uint64_t sizes[] = {RECORD, FRAME, 8};
    struct mc_lane lane = make_lane(ROWS, 3, sizes);
    struct fixture f;
    uint64_t state, due[ROWS / EVERY] = {0};
    lane.column[2].every = EVERY;
    open_writer(&f, lane);
    f.writer.frames[2] = &state;
    int length = 1, age = 0;
    for (uint64_t step = 0; step < 300; step++) {
        int64_t ticket = mc_lane_committed(&lane);
        int last = age + 1 == length;
        state = (uint64_t)ticket + 1;
        CHECK(add(&f, 0, last ? (step % 2 ? MC_TRUNCATED | MC_BOUNDARY : MC_TERMINATED) : 0) == ticket);
        if (age > 0 && age % EVERY == 0)
            due[ticket % ROWS / EVERY] = state;
        for (int k = 0; k < ROWS / EVERY; k++)
            CHECK(memcmp(lane.column[2].base + 8 * k, &due[k], 8) == 0);
        age = last ? 0 : age + 1;
        length = last ? 1 + (length + 4) % 11 : length;
    }
    free_lane(&lane);
}

TEST(a_reward_that_is_not_finite_changes_nothing) {
    const float rewards[] = {NAN, INFINITY, -INFINITY};
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 4);
    CHECK(add(&f, 1, 0) == 0);
    for (int i = 0; i < 3; i++) {
        uint8_t rows[2 * RECORD] = {0}, frames[2 * FRAME] = {0}, ends[6] = {0};
        const void *sources[] = {NULL, frames};
        CHECK(add(&f, rewards[i], MC_TRUNCATED | MC_BOUNDARY) == -EDOM);
        memcpy(rows + RECORD + offsetof(struct mc_row, reward), &rewards[i], sizeof rewards[i]);
        CHECK(mc_writer_add_rows(&f.writer, 2, rows, sources, ends, 0) == -EDOM);
        CHECK(mc_lane_committed(&lane) == 1 && reserved_of(&lane) == 1);
    }
    CHECK(add(&f, 2, 0) == 1);
    expect_row(&lane, 1, 1, 1, 0);
    free_lane(&lane);
}

TEST(a_boundary_row_that_does_not_fit_leaves_the_writer_as_it_was) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 1);
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, MC_TRUNCATED | MC_BOUNDARY) == -EINVAL);
    CHECK(mc_lane_committed(&lane) == 1 && add(&f, 3, 0) == 1);
    expect_row(&lane, 1, 1, 1, 0);
    free_lane(&lane);
}

TEST(a_closed_writer_says_so) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 4);
    uint8_t rows[RECORD] = {0}, ends[3] = {0};
    const void *sources[] = {NULL, rows};
    f.writer.closed = 1;
    CHECK(add(&f, 1, 0) == -ESHUTDOWN);
    CHECK(mc_writer_add_rows(&f.writer, 1, rows, sources, ends, 0) == -ESHUTDOWN);
    free_lane(&lane);
}

TEST(a_successor_counts_on_and_begins_an_episode) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    uint64_t first;
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, 0) == 1);
    CHECK(mc_lane_reserve(&lane, 2, &first) == 0); /* and here it is killed */
    open_writer(&f, lane);
    CHECK(add(&f, 3, MC_TRUNCATED | MC_BOUNDARY) == 2);
    expect_row(&lane, 2, 2, 0, MC_TRUNCATED);
    expect_row(&lane, 3, 3, 1, MC_BOUNDARY);
    open_writer(&f, lane);
    CHECK(add(&f, 4, 0) == 4);
    expect_row(&lane, 4, 3, 0, 0);
    CHECK(mc_lane_transitions(&lane) == 4);
    set_counters(&lane, 5, 4);
    CHECK(mc_writer_open(&f.writer) == -EUCLEAN);
    free_lane(&lane);
}

TEST(rows_added_together_have_the_heads_of_rows_added_one_by_one) {
    enum { N = 7 };
    const uint8_t terminated[N] = {0, 1, 0, 0, 0, 0, 0}, truncated[N] = {0, 0, 0, 1, 0, 0, 0},
                  boundary[N] = {0, 0, 0, 0, 1, 0, 0};
    struct mc_lane lane = make_replay(N);
    struct fixture f;
    uint8_t rows[N * RECORD] = {0}, frames[N * FRAME], ends[3 * N];
    const void *sources[] = {NULL, frames};
    memcpy(ends, terminated, N);
    memcpy(ends + N, truncated, N);
    memcpy(ends + 2 * N, boundary, N);
    for (int i = 0; i < N; i++)
        memset(frames + i * FRAME, i, FRAME);
    open_writer(&f, lane);
    CHECK(add(&f, 1, 0) == 0 && add(&f, 2, 0) == 1);
    CHECK(mc_writer_add_rows(&f.writer, N, rows, sources, ends, 1) == 2);
    expect_row(&lane, 2, 2, 2, 0);
    expect_row(&lane, 3, 3, 3, MC_TERMINATED);
    expect_row(&lane, 4, 4, 0, 0);
    expect_row(&lane, 5, 5, 1, MC_TRUNCATED);
    expect_row(&lane, 6, 6, 2, MC_BOUNDARY);
    expect_row(&lane, 7, 6, 0, 0);
    expect_row(&lane, 8, 7, 1, 0);
    for (uint64_t i = 0; i < N; i++)
        CHECK(frame_at(&lane, 2 + i) == (int)i);
    CHECK(mc_lane_transitions(&lane) == 6);
    free_lane(&lane);
}

TEST(a_truncated_row_without_its_boundary_row_changes_nothing) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    uint8_t rows[2 * RECORD] = {0}, frames[2 * FRAME] = {0};
    uint8_t in_the_middle[] = {0, 0, 1, 0, 0, 0}, at_the_end[] = {0, 0, 0, 1, 0, 0};
    const void *sources[] = {NULL, frames};
    CHECK(mc_writer_add_rows(&f.writer, 2, rows, sources, in_the_middle, 1) == -EPROTO);
    CHECK(mc_writer_add_rows(&f.writer, 2, rows, sources, at_the_end, 1) == -EPROTO);
    CHECK(mc_writer_add_rows(&f.writer, 0, rows, sources, at_the_end, 1) == -EINVAL);
    CHECK(mc_lane_committed(&lane) == 0 && reserved_of(&lane) == 0);
    CHECK(mc_writer_add_rows(&f.writer, 2, rows, sources, at_the_end, 0) == 0);
    expect_row(&lane, 1, 1, 1, MC_TRUNCATED);
    free_lane(&lane);
}

TEST(the_transitions_held_are_counted_across_the_wrap_without_boundary_rows) {
    for (uint64_t capacity = 2; capacity <= 9; capacity++) {
        struct mc_lane lane = make_replay(capacity);
        struct fixture f;
        open_writer(&f, lane);
        CHECK(mc_lane_transitions(&lane) == 0);
        for (int i = 0; i < 60; i++) {
            int64_t held = 0;
            CHECK(add(&f, (float)(i % 100), i % 4 == 3 ? MC_TRUNCATED | MC_BOUNDARY : 0) >= 0);
            uint64_t c = (uint64_t)mc_lane_committed(&lane);
            for (uint64_t t = c < capacity ? 0 : c - capacity; t < c; t++)
                held += !(flags_of(row_at(&lane, t)) & MC_BOUNDARY);
            CHECK(mc_lane_transitions(&lane) == held);
        }
        free_lane(&lane);
    }
}

TEST(a_count_of_transitions_that_is_more_than_the_rows_is_damage) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    CHECK(add(&f, 0, 0) == 0 && add(&f, 0, 0) == 1 && mc_lane_transitions(&lane) == 2);
    struct mc_row *oldest = (struct mc_row *)(void *)lane.column[0].base;
    oldest->ordinal = UINT32_MAX;
    CHECK(mc_lane_transitions(&lane) == -EUCLEAN);
    oldest->ordinal = 3;
    CHECK(mc_lane_transitions(&lane) == -EUCLEAN);
    free_lane(&lane);
}

TEST(the_count_of_transitions_survives_the_wrap_of_ordinals) {
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    f.writer.ordinal = UINT32_MAX - 1;
    for (int i = 0; i < 5; i++)
        add(&f, 0, 0);
    expect_row(&lane, 1, UINT32_MAX, 1, 0);
    expect_row(&lane, 2, 0, 2, 0);
    CHECK(mc_lane_transitions(&lane) == 5);
    free_lane(&lane);
}

/* Another open file description of the same file, as another process has it. */
static int another(int fd) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDWR | O_CLOEXEC);
    CHECK(other >= 0);
    return other;
}

static void open_shared(struct fixture *f, struct mc_lane lane, int fd) {
    open_writer(f, lane);
    f->writer.lock_fd = fd;
    f->writer.lock_offset = 7;
}

TEST(writers_of_a_shared_lane_take_turns) {
    struct mc_lane lane = make_replay(8);
    struct fixture one, two;
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    int fds[] = {another(fd), another(fd)};
    uint8_t rows[2 * RECORD] = {0}, frames[2 * FRAME] = {0}, ends[6] = {0};
    const void *sources[] = {NULL, frames};
    open_shared(&one, lane, fds[0]);
    open_shared(&two, lane, fds[1]);
    CHECK(add(&one, 1, 0) == 0 && add(&two, 2, 0) == 1 && add(&one, 3, MC_TERMINATED) == 2);
    CHECK(mc_writer_add_rows(&two.writer, 2, rows, sources, ends, 0) == 3 && add(&one, 4, 0) == 5);
    for (uint64_t t = 0; t < 6; t++)
        expect_row(&lane, t, (uint32_t)t, 0, t == 2 ? MC_TERMINATED : 0);
    CHECK(frame_at(&lane, 5) == 4 && mc_lock_held(fd, 7) == 0);
    close(fds[0]), close(fds[1]), close(fd);
    free_lane(&lane);
}

TEST(a_shared_lane_that_another_writer_holds_is_left_alone) {
    struct mc_lane lane = make_replay(8);
    struct fixture f;
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    int mine = another(fd), theirs = another(fd);
    uint8_t rows[RECORD] = {0}, frames[FRAME] = {0}, ends[3] = {0};
    const void *sources[] = {NULL, frames};
    uint64_t first;
    open_shared(&f, lane, mine);
    CHECK(mc_lock_try(theirs, 7, 1) == 0 && mc_lock_held(fd, 7) == 1);
    f.writer.lock_wait_ns = 2000000;
    CHECK(add(&f, 1, 0) == -EAGAIN);
    CHECK(mc_writer_add_rows(&f.writer, 1, rows, sources, ends, 0) == -EAGAIN);
    CHECK(mc_lane_reserve(&lane, 3, &first) == 0); /* and here the other one is killed */
    CHECK(mc_lane_committed(&lane) == 0);
    close(theirs);
    CHECK(mc_lock_held(fd, 7) == 0 && add(&f, 1, 0) == 0 && reserved_of(&lane) == 3);
    expect_row(&lane, 0, 0, 0, 0);
    close(mine), close(fd);
    free_lane(&lane);
}

TEST(a_shared_lane_that_is_damaged_or_closed_is_not_kept) {
    struct mc_lane lane = make_replay(8);
    struct fixture f;
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    int mine = another(fd);
    open_shared(&f, lane, mine);
    set_counters(&lane, 5, 4);
    CHECK(add(&f, 1, 0) == -EUCLEAN && mc_lock_held(fd, 7) == 0);
    f.writer.closed = 1;
    CHECK(add(&f, 1, 0) == -ESHUTDOWN && mc_lock_held(fd, 7) == 0);
    close(mine), close(fd);
    free_lane(&lane);
}

TEST(the_transitions_ever_inserted_are_counted_across_wraps_and_successors) {
    struct mc_lane lanes[2] = {make_replays(2, 3)};
    struct fixture f;
    int64_t inserted = 0;
    uint64_t first;
    mc_lanes_nth(lanes, 1, &lanes[1]);
    CHECK(mc_lanes_inserted(lanes, 2) == 0);
    for (int i = 0; i < 90; i++, inserted++) {
        struct mc_lane lane = lanes[i % 3 == 0];
        CHECK(mc_lane_reserve(&lane, lane.capacity, &first) == 0);
        memset(lane.column[0].base, 0xA5, lane.capacity * RECORD); /* and here it is killed */
        CHECK(mc_lanes_inserted(lanes, 2) == inserted);
        open_writer(&f, lane);
        CHECK(add(&f, 1, i % 4 == 3 ? MC_TRUNCATED | MC_BOUNDARY : 0) >= 0);
    }
    CHECK(mc_lanes_inserted(lanes, 2) == inserted);
    set_counters(&lanes[0], 5, 8); /* a reservation that kept nothing */
    CHECK(mc_lanes_inserted(lanes, 2) == -ESTALE && mc_writer_open(&f.writer) == -EUCLEAN);
    set_counters(&lanes[0], MC_TICKET_LIMIT, MC_TICKET_LIMIT);
    CHECK(mc_lanes_inserted(lanes, 2) == -EUCLEAN);
    free_lane(&lanes[0]);
}

TEST(the_count_of_insertions_survives_the_wrap_of_ordinals) {
    const int64_t many = (INT64_C(1) << 33) - 1; /* of which five were boundary rows */
    struct fixture f;
    struct mc_lane lane = open_replay(&f, 8);
    set_counters(&lane, (uint64_t)many, (uint64_t)many);
    f.writer.ordinal = (uint32_t)(many - 5);
    for (int i = 0; i < 5; i++) {
        CHECK(add(&f, 0, 0) == many + i);
        CHECK(mc_lanes_inserted(&lane, 1) == many + i + 1 - 5);
    }
    free_lane(&lane);
}

TEST(a_count_of_insertions_that_cannot_be_is_damage) {
    struct mc_lane lanes[3] = {make_replays(3, 8)};
    struct fixture f;
    for (uint64_t i = 1; i < 3; i++)
        mc_lanes_nth(lanes, i, &lanes[i]);
    open_writer(&f, lanes[0]);
    CHECK(add(&f, 0, 0) == 0 && mc_lanes_inserted(lanes, 1) == 1 && mc_lanes_transitions(lanes, 3) == 1);
    struct mc_row *row = (struct mc_row *)(void *)lanes[0].column[0].base;
    row->ordinal = 7; /* more transitions than rows */
    CHECK(mc_lanes_inserted(lanes, 1) == -EUCLEAN);
    for (int i = 0; i < 3; i++)
        set_counters(&lanes[i], MC_TICKET_LIMIT - 1, MC_TICKET_LIMIT - 1);
    CHECK(mc_lanes_inserted(lanes, 3) == -EUCLEAN);
    free_lane(&lanes[0]);
}

/* Writers of several lanes, and the staging of a call that gives each of them a row. */
enum { LANES = 3 };
struct vector {
    struct mc_lane lanes[LANES];
    struct mc_writer writers[LANES];
    struct mc_vector raw;
    uint8_t records[LANES][2][RECORD], frames[LANES][FRAME], finals[LANES][FRAME], ends[3][LANES];
    int64_t which[LANES], tickets[LANES];
};

static void open_vector(struct vector *v, uint64_t capacity) {
    memset(v, 0, sizeof *v);
    v->lanes[0] = make_replays(LANES, capacity);
    for (uint64_t i = 0; i < LANES; i++) {
        mc_lanes_nth(v->lanes, i, &v->lanes[i]);
        v->writers[i].lane = v->lanes[i];
        CHECK(mc_writer_open(&v->writers[i]) == 0);
        v->which[i] = (int64_t)i;
        v->tickets[i] = -7;
    }
    v->raw = (struct mc_vector){
        .writers = v->writers, .count = LANES, .records = v->records[0][0], .final_needed = 1};
}

/* A row a lane, whose frames are its place in the call plus `first`. */
static int add_vector(struct vector *v, uint64_t n, int first, int finals) {
    for (int i = 0; i < LANES; i++) {
        memset(v->frames[i], first + i, FRAME);
        memset(v->finals[i], first + i + 100, FRAME);
    }
    v->raw.frames[1] = v->frames;
    v->raw.final_frames[1] = finals ? v->finals : NULL;
    return mc_vector_add(&v->raw, n, v->which, v->ends[0], finals, v->tickets);
}

static void expect_untouched(const struct vector *v, int64_t committed) {
    for (int i = 0; i < LANES; i++)
        CHECK(mc_lane_committed(&v->lanes[i]) == committed &&
              reserved_of(&v->lanes[i]) == (uint64_t)committed);
}

TEST(rows_of_a_vector_go_to_the_lanes_that_are_named) {
    struct vector v;
    open_vector(&v, 4);
    v.raw.policy_version = 7;
    CHECK(add_vector(&v, LANES, 0, 0) == 0);
    v.which[0] = 2, v.which[1] = 0;
    CHECK(add_vector(&v, 2, 20, 0) == 0);
    CHECK(v.tickets[0] == 1 && v.tickets[1] == 1 && mc_lane_committed(&v.lanes[1]) == 1);
    for (int i = 0; i < LANES; i++)
        CHECK(frame_at(&v.lanes[i], 0) == i && row_at(&v.lanes[i], 0).policy_version == 7);
    CHECK(frame_at(&v.lanes[2], 1) == 20 && frame_at(&v.lanes[0], 1) == 21);
    expect_row(&v.lanes[2], 1, 1, 1, 0);
    free_lane(&v.lanes[0]);
}

TEST(the_lanes_of_a_durable_vector_pledge_together) {
    struct vector v;
    open_vector(&v, 8);
    /* Of queues, the second not withheld yet; and of a replay. */
    uint64_t words[LANES][2] = {{0}, {1}, {0}}, room[LANES] = {8, 7, 0}, pledged[LANES] = {8, 7, 1 + 8 / 4};
    for (int i = 0; i < LANES; i++) {
        v.writers[i].lane.promised = (uint8_t *)words[i];
        v.writers[i].lane.withheld = MC_TICKET_LIMIT - 1 - words[i][MC_PROMISED];
        atomic_store(&mc_counters_of(&v.lanes[i])->room, room[i]);
    }
    CHECK(add_vector(&v, LANES, 0, 0) == 0);
    for (int i = 0; i < LANES; i++) {
        const struct mc_counters *counters = mc_counters_of(&v.lanes[i]);
        CHECK(mc_load_pledged(counters) == pledged[i] && mc_load_upheld(counters) == pledged[i]);
    }
    free_lane(&v.lanes[0]);
}

TEST(ended_rows_of_a_vector_have_boundary_rows_if_these_are_given) {
    struct vector v;
    open_vector(&v, 8);
    v.ends[0][0] = v.ends[1][2] = 1;
    CHECK(add_vector(&v, LANES, 0, 1) == 0);
    v.ends[1][2] = 0;
    CHECK(add_vector(&v, LANES, 10, 0) == 0);
    CHECK(v.tickets[0] == 2 && v.tickets[1] == 1 && v.tickets[2] == 2);
    expect_row(&v.lanes[0], 0, 0, 0, MC_TERMINATED);
    expect_row(&v.lanes[0], 1, 1, 1, MC_BOUNDARY);
    expect_row(&v.lanes[0], 2, 1, 0, MC_TERMINATED);
    expect_row(&v.lanes[1], 1, 1, 1, 0);
    expect_row(&v.lanes[2], 1, 1, 1, MC_BOUNDARY);
    CHECK(frame_at(&v.lanes[0], 1) == 100 && frame_at(&v.lanes[2], 1) == 102);
    free_lane(&v.lanes[0]);
}

TEST(any_byte_but_zero_is_true) {
    struct vector v;
    struct fixture f;
    uint8_t rows[2 * RECORD] = {0}, frames[2 * FRAME] = {0}, ends[] = {4, 0, 0, 2, 0, 0};
    const void *sources[] = {NULL, frames};
    open_vector(&v, 8);
    v.ends[0][0] = MC_BOUNDARY, v.ends[1][1] = MC_TERMINATED + MC_TRUNCATED;
    v.raw.final_needed = 0;
    CHECK(add_vector(&v, LANES, 0, 0) == 0 && mc_lane_committed(&v.lanes[0]) == 1);
    expect_row(&v.lanes[0], 0, 0, 0, MC_TERMINATED);
    expect_row(&v.lanes[1], 0, 0, 0, MC_TRUNCATED);
    free_lane(&v.lanes[0]);
    struct mc_lane lane = open_replay(&f, 8);
    CHECK(mc_writer_add_rows(&f.writer, 2, rows, sources, ends, 0) == 0);
    expect_row(&lane, 0, 0, 0, MC_TERMINATED);
    expect_row(&lane, 1, 1, 0, MC_TRUNCATED);
    free_lane(&lane);
}

TEST(a_bad_row_of_a_vector_changes_no_lane) {
    struct vector v;
    float nan = NAN, zero = 0;
    open_vector(&v, 4);
    CHECK(add_vector(&v, LANES, 0, 0) == 0);
    memcpy(v.records[2][0] + offsetof(struct mc_row, reward), &nan, sizeof nan);
    CHECK(add_vector(&v, LANES, 0, 0) == -EDOM);
    memcpy(v.records[2][0] + offsetof(struct mc_row, reward), &zero, sizeof zero);
    v.ends[1][2] = 1;
    CHECK(add_vector(&v, LANES, 0, 0) == -EPROTO);
    v.ends[1][2] = 0;
    for (int64_t wrong = -1; wrong <= LANES; wrong += 2) { /* the last two: lane 1 twice, and none of these */
        v.which[2] = wrong;
        CHECK(add_vector(&v, LANES, 0, 0) == -EINVAL);
    }
    v.which[2] = 2;
    expect_untouched(&v, 1);
    set_counters(&v.lanes[2], 3, 1);
    CHECK(add_vector(&v, LANES, 0, 0) == -EUCLEAN);
    set_counters(&v.lanes[2], 1, 1);
    v.raw.count = 0;
    CHECK(add_vector(&v, LANES, 0, 0) == -ESHUTDOWN);
    v.raw.count = LANES;
    expect_untouched(&v, 1);
    CHECK(add_vector(&v, LANES, 0, 0) == 0 && v.tickets[2] == 1);
    v.raw.final_needed = 0;
    v.ends[1][2] = 1;
    CHECK(add_vector(&v, LANES, 0, 0) == 0);
    free_lane(&v.lanes[0]);
}

TEST(a_row_that_is_left_out_ends_its_lanes_episode) {
    struct vector v;
    open_vector(&v, 4);
    CHECK(add_vector(&v, LANES, 0, 0) == 0);
    v.ends[2][1] = 1;
    CHECK(add_vector(&v, LANES, 0, 0) == 0 && v.tickets[1] == -1 && v.tickets[2] == 1);
    v.ends[2][1] = 0;
    CHECK(add_vector(&v, LANES, 0, 0) == 0 && v.tickets[1] == 1);
    expect_row(&v.lanes[1], 1, 1, 0, 0);
    expect_row(&v.lanes[2], 2, 2, 2, 0);
    free_lane(&v.lanes[0]);
}

TEST(a_vector_wakes_waiters_once_with_the_sum_of_its_rows) {
    struct vector v;
    open_vector(&v, 8);
    struct mc_event *event = (struct mc_event *)(void *)v.lanes[0].event;
    uint32_t seen = mc_event_prepare(v.lanes[0].event, 9);
    v.ends[0][0] = 1;
    CHECK(add_vector(&v, LANES, 0, 1) == 0 && mc_load_half(&event->wanted) == 5);
    CHECK(mc_load_half(&event->event) == seen);
    CHECK(add_vector(&v, LANES, 0, 1) == 0 && add_vector(&v, 1, 0, 0) == 0);
    CHECK(mc_load_half(&event->event) == seen + 1 && mc_load_half(&event->wanted) == 0);
    free_lane(&v.lanes[0]);
}
int main(void) { return run_tests(); }
